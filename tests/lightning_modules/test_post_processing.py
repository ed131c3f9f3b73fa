"""Options that use what was released once more: each changes the run, and none of them what it asked and paid for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil, watched

from lightning_modules import DPDFD
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.teachers.private_teacher import PrivateTeacher

STEPS = 4
LABEL = {"class_path": "NoisyLabels", "init_args": {"epsilon": 2.0, "smallest": 3, "scope": "run"}}
RUNS: dict[str, dict[str, Any]] = {
    "DPDFD": {"model": {"student_target": "gradients"}},
    "DPSD label": {"class_path": "DPSD", "model": {"mechanism": LABEL}},
    "LabelDP": {
        "class_path": "LabelDP",
        "model": {
            "mechanism": {"epsilon": 2.0, "scope": "run"},
            "generator_training": {"discriminator": "student"},
        },
    },
}
OPTIONS: dict[str, Any] = {"replay": {"capacity": 20}, "student_balance": 1.0}


class AskingDPDFD(DPDFD):
    """Asks its teacher once more where nobody is charged for it."""

    def update_generator(self, *arguments: Any, **settings: Any) -> None:
        super().update_generator(*arguments, **settings)
        self.teacher.logits(torch.zeros(2, *self.image_shape))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the teacher was asked about in each call."""
    return watched(monkeypatch, PrivateTeacher, "logits")


def run(name: str, folder: str, **options: Any) -> TranscriptionCLI:
    settings = dict(RUNS[name])
    model = {**settings.pop("model", {}), **options}
    return distil(folder, model=model, mechanism={"scope": "run"}, steps=STEPS, **settings)


def spent(made: Callable[[], TranscriptionCLI], asked: list[int]) -> tuple[Any, ...]:
    """All that a run asked for, was charged and may say of itself, but for its own identity."""
    asked.clear()
    model = made().model
    account, guarantee = model.session.account, model.guarantee()
    return (
        list(asked),
        account.counts(scope="run"),
        (account.epsilon(), account.epsilon_published(), account.queries(scope="run")),
        (guarantee.epsilon, guarantee.claimed_epsilon, guarantee.unit, guarantee.assumptions),
        model.session.uncharged_queries,
    )


@pytest.mark.parametrize("name", RUNS)
def test_options_cost_nothing(folder: Path, asked: list[int], name: str) -> None:
    default = spent(lambda: run(name, "default"), asked)
    assert default[0] == [8] * STEPS and sum(default[0]) == default[2][2] and 0 < default[2][0] < float("inf")
    assert spent(lambda: run(name, "changed", **OPTIONS), asked) == default


def test_a_query_that_is_not_charged_is_noticed(folder: Path, asked: list[int]) -> None:
    default = spent(lambda: run("DPDFD", "default"), asked)
    asking = {"class_path": f"{__name__}.AskingDPDFD", "mechanism": {"scope": "run"}, **RUNS["DPDFD"]}
    changed = spent(lambda: distil("asking", steps=STEPS, **asking), asked)
    assert changed[0] != default[0] and changed[1:] == default[1:]
