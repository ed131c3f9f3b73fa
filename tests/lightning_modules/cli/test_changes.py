"""A class that a later argument replaces neither loses nor keeps a setting silently; the help lists all settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from inspect import isabstract
from pathlib import Path
from typing import Any

import pytest
from lightning import LightningModule
from support.offered import offered
from support.runs import charged, configuration, fit

import lightning_modules
from lightning_modules.cli import main
from lightning_modules.cli.fit import TranscriptionCLI
from privacy.mechanisms import NoisyLabels

BUDGETED = configuration(mechanism={"noise_multiplier": 50.0, "target_epsilon": 50.0}, model={"images": "prior"})
GRADIENTS = {"norm_bound": 0.5}


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What jsonargparse does by itself."""
    monkeypatch.setattr("lightning_modules.cli.fit.say_changes", lambda *_: None)


def test_no_mechanism_is_dropped_with_the_model_that_had_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LabelDP was trained with its default mechanism, and the ledger was charged."""
    anew = {"class_path": "LabelDP", "init_args": {"mechanism": {}}}
    for given in ("--model=LabelDP", "--config=" + json.dumps({"model": anew})):
        with pytest.raises(ValueError, match=r"LabelDP instead of DPDFD, .*without its mechanism.*: write a config"):
            fit(BUDGETED, given)
        with pytest.raises(ValueError, match=r"without its mechanism"):  # which would write one without it
            fit(BUDGETED, given, "--print_config")
    assert not charged()
    silent(monkeypatch)
    assert fit(BUDGETED, "--model=LabelDP").model.mechanism == NoisyLabels()
    assert charged()


def of_model(class_path: str = "DPDFD", **model: Any) -> dict[str, Any]:
    given = {"teacher": {"path": "teachers/digits.ckpt"}, **model}
    return {**BUDGETED, "model": {"class_path": class_path, "init_args": given}}


MNIST: dict[str, Any] = {"class_path": "MNIST", "init_args": {"root": "elsewhere", "val_fraction": 0.3}}
NOISE = {"class_path": "privacy.mechanisms.base.ReproducibleNoise", "init_args": {"seed": 7}}
LABELS: dict[str, Any] = {"class_path": "NoisyLabels", "init_args": {"epsilon": 2, "noise": NOISE}}
BUDGET = {"target_epsilon": 3, "delta": 1e-6}
OF_LABELS = of_model("DPSD", mechanism=LABELS, budget=BUDGET)
OF_GRADIENTS = of_model("DPSD", mechanism={"release": "per_sample_full", "noise_multiplier": 7}, budget=BUDGET)
NO_BUDGET = 'config={"model": {"init_args": {"budget": null}}}'
REFUSED = [
    (of_model(mechanism=GRADIENTS), "model=LabelDP", r"without its mechanism\.norm_bound: write"),
    (
        of_model(budget=BUDGET),
        "model=Teacher",
        r"without its teacher\.path, budget\.target_epsilon, budget\.delta: write",
    ),
    (of_model(budget=BUDGET), NO_BUDGET, r"model\.budget\.target_epsilon, model\.budget\.delta would be lost"),
    (OF_LABELS, "model.mechanism=NoisyGradients", r"with its noise, noise\.seed, without its epsilon: write"),
    (OF_GRADIENTS, "model.mechanism=NoisyLabels", r"release, model\.mechanism\.noise_multiplier would be lost"),
]


@pytest.fixture
def parsed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any], str], Any]:
    """What a configuration and an option after it are parsed to: the settings of the model."""
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI.instantiate_classes", lambda _: None)
    return lambda config, option: (
        TranscriptionCLI([f"--config={json.dumps(config)}", f"--{option}"], run=False).config.model
    )


@pytest.mark.parametrize(("config", "option", "said"), REFUSED)
def test_no_setting_of_a_model_a_mechanism_or_a_budget_is_lost(
    parsed: Callable[[dict[str, Any], str], Any],
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    option: str,
    said: str,
) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(config, option)
    silent(monkeypatch)
    parsed(config, option)


MODELS = [
    kind
    for kind in (getattr(lightning_modules, name) for name in lightning_modules.__all__)
    if isinstance(kind, type) and issubclass(kind, LightningModule) and not isabstract(kind)
]


@pytest.mark.parametrize("kind", MODELS, ids=[kind.__name__ for kind in MODELS])
def test_the_help_lists_every_setting(kind: type, capsys: pytest.CaptureFixture[str]) -> None:
    """It listed the name of the class alone."""
    main(["fit", "--model", kind.__name__, "--help"])
    shown = {name.removeprefix("model.") for name in re.findall(r"^  --(\S+)", capsys.readouterr().out, re.MULTILINE)}
    wanted = {*offered(kind, mechanisms=False)}
    # A group that may be null has a help of its own.
    missing = [name for name in wanted - shown if f"{name.rpartition('.')[0]}.help" not in shown]
    assert len(wanted) > 3 and not missing


OWN = """
from dataclasses import dataclass
from lightning_modules import DPDFD
from privacy.mechanisms import NoisyGradients

@dataclass(frozen=True, kw_only=True)
class Louder(NoisyGradients):
    noise_multiplier: float = 200.0

class TwoWays(DPDFD):
    mechanisms = (NoisyGradients, Louder)
    mechanism: NoisyGradients | Louder

    def __init__(self, *, mechanism: NoisyGradients | Louder, **shared):
        super().__init__(mechanism=mechanism, **shared)
"""


def test_a_mechanism_that_is_named_is_the_one_that_is_built(folder: Path) -> None:
    """jsonargparse made the first of a method's mechanisms of the settings of another one, without a word."""
    Path("two_ways.py").write_text(OWN, encoding="utf-8")
    named = of_model("two_ways.TwoWays", mechanism={"class_path": "two_ways.Louder", "init_args": {"top_k": 3}})
    model = TranscriptionCLI(["--config=" + json.dumps(named)], run=False).model
    assert type(model.mechanism).__name__ == "Louder"
    assert main(["fit", "--model=two_ways.TwoWays", "--help"]) is None
