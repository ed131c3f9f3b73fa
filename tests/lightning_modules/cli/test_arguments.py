"""A class that a later argument replaces neither loses nor keeps a setting silently."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import charged, configuration, fit

from lightning_modules.cli.fit import command_line
from privacy.mechanisms import NoisyLabels

BUDGETED = configuration(mechanism={"noise_multiplier": 50.0, "target_epsilon": 50.0}, model={"images": "prior"})
GRADIENTS = {"class_path": "NoisyGradients", "init_args": {"norm_bound": 0.5}}


def test_no_mechanism_is_dropped_with_the_model_that_had_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LabelDP was trained with its default mechanism, and the ledger was charged."""
    anew = {"class_path": "LabelDP", "init_args": {"mechanism": {}}}
    for given in ("--model=LabelDP", "--config=" + json.dumps({"model": anew})):
        with pytest.raises(ValueError, match=r"LabelDP instead of DPDFD, .*without its mechanism.*: write a config"):
            fit(BUDGETED, given)
        with pytest.raises(ValueError, match=r"without its mechanism"):  # which would write one without it
            fit(BUDGETED, given, "--print_config")
    assert not charged()
    monkeypatch.setattr("lightning_modules.cli.fit.checked_classes", contextlib.nullcontext)
    assert fit(BUDGETED, "--model=LabelDP").model.mechanism == NoisyLabels()
    assert charged()


def of_model(class_path: str = "DPDFD", **model: Any) -> dict[str, Any]:
    return {**BUDGETED, "model": {"class_path": class_path, "init_args": {"teacher": "teachers/digits.ckpt", **model}}}


def adam(**settings: Any) -> dict[str, Any]:
    return of_model(student={"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1, **settings}}})


MIXTURE = {"class_path": "MixturePrior", "init_args": {"priors": [{"class_path": "FractalPrior"}], "jitter": 0.5}}
MIXED = of_model(images={"source": "prior", "prior": MIXTURE})
MNIST: dict[str, Any] = {"class_path": "MNIST", "init_args": {"root": "elsewhere", "val_fraction": 0.3}}
OF_MNIST = {**BUDGETED, "data": {"class_path": "SyntheticSteps", "init_args": {"dataset": MNIST}}}
NOISE = {"class_path": "privacy.mechanisms.noise.ReproducibleNoise", "init_args": {"seed": 7}}
LABELS: dict[str, Any] = {"class_path": "NoisyLabels", "init_args": {"epsilon": 2, "noise": NOISE}}
BUDGET = {"target_epsilon": 3, "delta": 1e-6}
OF_LABELS = of_model("DPSD", mechanism=LABELS, budget=BUDGET)
OF_GRADIENTS = of_model("DPSD", mechanism={"release": "per_sample_full", "noise_multiplier": 7}, budget=BUDGET)
WHOLE = '{"class_path": "%s", "init_args": {%s}}'


@pytest.mark.parametrize(
    ("config", "option", "said"),
    [
        (of_model(mechanism=GRADIENTS), "model=DPSD", "DPSD instead of DPDFD, with its mechanism, teacher."),
        (of_model(budget=BUDGET), "model=LabelDP", "with its budget.delta, budget.target_epsilon, teacher."),
        (of_model(budget=BUDGET), "model=Teacher", "without its budget.delta, budget.target_epsilon, teacher: no mech"),
        (OF_LABELS, "model.mechanism=NoisyGradients", "with its noise, without its epsilon: give"),
        (
            OF_LABELS,
            "model.mechanism=" + WHOLE % ("NoisyGradients", '"norm_bound": 0.5'),
            "NoisyGradients instead of NoisyLabels, with its noise, without its epsilon.",
        ),
        (OF_GRADIENTS, "model.mechanism=NoisyLabels", "without its noise_multiplier, release: give"),
        (
            OF_GRADIENTS,  # without the name of its class, which its settings tell
            "model.mechanism=" + WHOLE % ("NoisyLabels", '"epsilon": 2'),
            "NoisyLabels instead of NoisyGradients, without its noise_multiplier, release.",
        ),
        (adam(), "model.student.optimizer=AdamW", "AdamW instead of Adam, with its lr."),
        (adam(amsgrad=True), "model.student.optimizer=torch.optim.SGD", "with its lr, without its amsgrad: give"),
        (
            adam(amsgrad=True),
            "model.student.optimizer=" + WHOLE % ("torch.optim.SGD", '"lr": 1'),
            "SGD instead of Adam, without its amsgrad.",
        ),
        (
            MIXED,
            "model.images.prior=GlyphPrior",
            "MixturePrior, without its jitter, priors: give",
        ),
        # It has no settings that could be given with it.
        (MIXED, "model.images.prior=StrokePrior", "StrokePrior instead of MixturePrior, without its jitter, priors."),
        (OF_MNIST, "data.dataset=FashionMNIST", "FashionMNIST instead of MNIST, with its root, val_fraction."),
        (OF_MNIST, "data=Digits", "Digits instead of SyntheticSteps, without its dataset: give"),
        (BUDGETED, "model.student.network=TanhCNN", "TanhCNN instead of SmallCNN, without its hidden, width."),
    ],
)
def test_what_becomes_of_settings_is_said_or_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    option: str,
    said: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI.instantiate_classes", lambda _: None)
    line = [f"--config={json.dumps(config)}", f"--{option}"]
    if said.endswith((": give", ": no mech")):
        with pytest.raises(ValueError, match=said):
            command_line(line, run=False)
    else:
        model = command_line(line, run=False).config.model.init_args
        assert said in caplog.text
        budget = config["model"]["init_args"].get("budget", {})
        assert {name: model.budget[name] for name in budget} == budget
    caplog.clear()
    monkeypatch.setattr("lightning_modules.cli.fit.checked_classes", contextlib.nullcontext)
    command_line(line, run=False)
    assert "instead of" not in caplog.text
