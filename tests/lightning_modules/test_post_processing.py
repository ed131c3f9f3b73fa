"""Options that use what was released once more: each changes the run, and none of them what it asked and paid for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil, equal, grouped, interrupted, networks, watched
from support.variants import MoodyTeacher

from lightning_modules import DPDFD, DPSD
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.evaluation import measured_on
from lightning_modules.publishing.run import read_run
from lightning_modules.teachers.private_teacher import PrivateTeacher

STEPS = 4
LABEL = {"class_path": "LabelAnnotator", "init_args": {"epsilon": 2.0, "smallest": 3, "scope": "run"}}
RUNS: dict[str, dict[str, Any]] = {
    "DPDFD": {"model": {"student_follows": "gradients"}},
    "DPSD data": {"class_path": "DPSD", "annotator": {"top_k": 3}},
    "DPSD label": {"class_path": "DPSD", "model": {"annotator": LABEL}},
}
#: Each option by the settings that switch it on.
OPTIONS: dict[str, dict[str, Any]] = {
    "statistics": {"generator_loss": {"statistics_weight": 1.0}},
    "average": {"student_ema": 0.9},
    "replay": {"replay": {"capacity": 20}},
    "balance": {"student_balance": 1.0},
}
ALL = {name: value for settings in OPTIONS.values() for name, value in settings.items()}


class AskingDPDFD(DPDFD):
    """Asks its teacher once more where nobody is charged for it."""

    def update_generator(self, *arguments: Any, **settings: Any) -> None:
        super().update_generator(*arguments, **settings)
        self.teacher.logits(torch.zeros(2, *self.image_shape))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the teacher was asked about in each call."""
    return watched(monkeypatch, PrivateTeacher, "logits")


def run(name: str, folder: str, *arguments: str, noise: float = 100.0, **options: Any) -> TranscriptionCLI:
    settings = dict(RUNS[name])
    annotator = {"noise_multiplier": noise, "scope": "run", **settings.pop("annotator", {})}
    model = {**settings.pop("model", {}), **options}
    return distil(folder, *arguments, model=model, annotator=annotator, steps=STEPS, **settings)


def published(cli: TranscriptionCLI) -> dict[str, torch.Tensor]:
    """Every weight and buffer that a run publishes."""
    found = cli.model.published_networks().items()
    return {f"{name}.{key}": value for name, network in found for key, value in network.state_dict().items()}


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
        model.run.uncharged_queries,
    )


@pytest.mark.parametrize("name", ["DPDFD", "DPSD label"])
def test_options_cost_nothing(folder: Path, asked: list[int], name: str) -> None:
    default = spent(lambda: run(name, "default"), asked)
    assert default[0] == [8] * STEPS and 0 < default[2][0] < float("inf")
    assert spent(lambda: run(name, "changed", **ALL), asked) == default


def test_a_query_that_is_not_charged_is_noticed(folder: Path, asked: list[int]) -> None:
    default = spent(lambda: run("DPDFD", "default"), asked)
    asking = {"class_path": f"{__name__}.AskingDPDFD", "annotator": {"scope": "run"}, **RUNS["DPDFD"]}
    changed = spent(lambda: distil("asking", steps=STEPS, **asking), asked)
    assert changed[0] != default[0] and changed[1:] == default[1:]


def test_an_option_changes_the_run(folder: Path, name: str = "DPDFD") -> None:
    """Without noise, which no two runs have in common."""
    default = run(name, "default", noise=0.0)
    assert equal(published(default), published(run(name, "again", noise=0.0)))
    for option, settings in OPTIONS.items():
        changed = run(name, option, noise=0.0, **settings)
        assert not equal(published(default), published(changed)), option
        # A student learns as it does without an average.
        assert equal(networks(default), networks(changed)) is (option == "average")


def test_options_survive_an_interruption(folder: Path) -> None:
    settings = {"noise": 0.0, "images": "both", **ALL}
    whole = run("DPDFD", "whole", **settings)
    interrupted(DPDFD, 2, lambda: run("DPDFD", "run", **settings))
    resumed = run("DPDFD", "run", "--ckpt_path=run/checkpoints/last.ckpt", **settings)
    assert resumed.model.steps_done == STEPS
    kept, again = (
        {name: value for name, value in cli.model.state_dict().items() if isinstance(value, torch.Tensor)}
        for cli in (whole, resumed)
    )
    assert equal(kept, again)


def test_the_average_of_the_student_is_what_is_evaluated_and_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights and BatchNorm statistics against the sum by hand; the student itself learns as it does without."""
    states: list[dict[str, torch.Tensor]] = []
    step = DPDFD.step_student

    def watched(self: DPDFD, loss: torch.Tensor) -> None:
        step(self, loss)
        states.append({name: value.clone() for name, value in self.student.state_dict().items()})

    with monkeypatch.context() as patch:
        patch.setattr(DPDFD, "step_student", watched)
        model = run("DPDFD", "run", "--trainer.callbacks+=ResultRecord", student_ema=0.25).model
    expected = states[0]
    for decay, state in zip([2 / 11, 3 / 12, 0.25], states[1:], strict=True):
        expected = {name: decay * value + (1 - decay) * state[name] for name, value in expected.items()}
    average = model.published_networks()["student"]
    assert average is not model.student and equal(states[-1], model.student.state_dict())
    for name, value in average.state_dict().items():
        assert not value.is_floating_point() or torch.allclose(value, expected[name], atol=1e-6), name
    saved = torch.load("run/public/student.pt", weights_only=True)
    assert equal(average.state_dict(), saved)
    assert equal(average.state_dict(), read_run("run").network.state_dict())
    images = torch.randn(64, 1, 8, 8)
    assert torch.equal(model.eval()(images), average(images))
    assert not torch.equal(model(images), model.student(images))
    measured = measured_on(average, model.trainer.datamodule.test_dataloader(), model.device)
    assert json.loads(Path("run/result.json").read_text())["accuracy"] == measured["accuracy"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"student_ema": 1.0}, "student.ema must be 0 or more and below 1, or null for no average, got 1.0"),
        ({"student_ema": -0.1}, "student.ema must be 0 or more and below 1, or null for no average, got -0.1"),
    ],
)
@pytest.mark.parametrize("kind", [DPDFD, DPSD])
def test_settings_without_meaning_are_refused(kind: type[DPDFD | DPSD], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(num_classes=10, image_shape=(1, 8, 8), batch_size=6, teacher=MoodyTeacher(), **grouped(kind, **settings))
