"""Options that use what was released once more: each changes the run, and none of them what it asked and paid for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil, equal, networks

from lightning_modules import DPDFD
from lightning_modules.cli import TranscriptionCLI
from lightning_modules.teachers.private_teacher import PrivateTeacher

STEPS = 4
LABEL = {"class_path": "LabelAnnotator", "init_args": {"epsilon": 2.0, "smallest": 3, "scope": "run"}}
RUNS: dict[str, dict[str, Any]] = {
    "DPDFD": {},
    "DPDFD follows gradients": {"model": {"student_follows": "gradients"}},
    "DPSD data": {"class_path": "DPSD", "annotator": {"top_k": 3}},
    "DPSD label": {"class_path": "DPSD", "model": {"annotator": LABEL}},
}
#: Each option by the settings that switch it on.
OPTIONS: dict[str, dict[str, Any]] = {
    "statistics": {"generator_terms": {"statistics_weight": 1.0}},
}


class AskingDPDFD(DPDFD):
    """Asks its teacher once more where nobody is charged for it."""

    def update_generator(self, *arguments: Any, **settings: Any) -> None:
        super().update_generator(*arguments, **settings)
        self.teacher.logits(torch.zeros(2, *self.image_shape))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the teacher was asked about in each call."""
    found: list[int] = []
    logits = PrivateTeacher.logits

    def watched(self: PrivateTeacher, images: torch.Tensor) -> torch.Tensor:
        found.append(len(images))
        return logits(self, images)

    monkeypatch.setattr(PrivateTeacher, "logits", watched)
    return found


def run(name: str, folder: str, *, noise: float = 100.0, **options: Any) -> TranscriptionCLI:
    settings = dict(RUNS[name])
    annotator = {"noise_multiplier": noise, "scope": "run", **settings.pop("annotator", {})}
    model = {**settings.pop("model", {}), **options}
    return distil(folder, model=model, annotator=annotator, steps=STEPS, **settings)


def spent(made: Callable[[], TranscriptionCLI], asked: list[int]) -> tuple[Any, ...]:
    """All that a run asked for, was charged and may say of itself, but for its own identity."""
    asked.clear()
    model = made().model
    account, guarantee = model.annotator.account, model.guarantee()
    return (
        list(asked),
        account.counts(scope="run"),
        (account.epsilon(), account.epsilon_published(), account.queries(scope="run")),
        (guarantee.epsilon, guarantee.claimed_epsilon, guarantee.unit, guarantee.assumptions),
        model.data_accesses,
    )


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", RUNS)
def test_an_option_costs_nothing(folder: Path, asked: list[int], name: str, option: str) -> None:
    default = spent(lambda: run(name, "default"), asked)
    assert default[0] == [8] * STEPS and 0 < default[2][0] < float("inf")
    assert spent(lambda: run(name, "changed", **OPTIONS[option]), asked) == default


def test_a_query_that_is_not_charged_is_noticed(folder: Path, asked: list[int]) -> None:
    default = spent(lambda: run("DPDFD", "default"), asked)
    asking = {"class_path": f"{__name__}.AskingDPDFD", "annotator": {"scope": "run"}}
    changed = spent(lambda: distil("asking", steps=STEPS, **asking), asked)
    assert changed[0] != default[0] and changed[1:] == default[1:]


@pytest.mark.parametrize("name", [name for name in RUNS if name != "DPSD label"])
def test_an_option_changes_the_run(folder: Path, name: str) -> None:
    """Without noise, which no two runs have in common."""
    default = networks(run(name, "default", noise=0.0))
    assert equal(default, networks(run(name, "again", noise=0.0)))
    for option, settings in OPTIONS.items():
        assert not equal(default, networks(run(name, option, noise=0.0, **settings)))
