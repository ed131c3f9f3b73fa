"""LabelDP: stages that are labelled once, what they are charged, and what survives an interruption."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import seed_everything
from support.label_variants import FixedLabels, WellInformedLabelDP
from support.runs import (
    BATCH_SIZE,
    RESUME,
    checkpoint,
    distil,
    equal,
    fit_script,
    interrupted,
    leaks,
    networks,
    of_digits,
    teacher_weights,
)
from support.variants import two_teachers

from lightning_modules import LabelDP
from lightning_modules.cli.fit import TranscriptionCLI
from privacy.accounting.composition import compose
from privacy.events import RandomizedResponse

STEPS, STAGES = 4, 2
QUIET: dict[str, Any] = {"student": "DataLensClassifier", "images": "prior"}


def run(
    folder: str = "run",
    *arguments: str,
    kind: str = "LabelDP",
    epochs: int = STAGES,
    mechanism: Any = None,
    **model: Any,
) -> TranscriptionCLI:
    path = kind if kind == "LabelDP" else f"support.label_variants.{kind}"
    settings = {"mechanism": {"class_path": "NoisyLabels", "init_args": mechanism or {}}, "pretraining_steps": 2}
    return distil(folder, *arguments, class_path=path, steps=STEPS, epochs=epochs, model={**settings, **model})


def _answers(calls: int) -> float:
    return compose({RandomizedResponse(1.0, 2): calls * BATCH_SIZE}, 1e-5).epsilon


@pytest.mark.parametrize("train_on", ["stage", "union"])
def test_prior_images_cost_their_answers_and_nothing_else(folder: Path, train_on: str) -> None:
    model = run(images="prior", train_on=train_on).model
    account = model.session.account
    assert model.session.calls_made() == STEPS * STAGES
    assert account.epsilon() == pytest.approx(_answers(STEPS * STAGES))
    assert account.epsilon_published() == 1.0
    assert (model.session.plan.calls, model.session.plan.changed) == (STEPS * STAGES, False)
    assert len(model.stage_labels) == BATCH_SIZE * STEPS * (STAGES if train_on == "union" else 1)


def test_a_generator_that_saw_the_teacher_is_bounded_by_nothing(folder: Path) -> None:
    cli = run(images="generator")
    account = cli.model.session.account
    assert account.epsilon() == math.inf and account.epsilon_published() == 1.0
    assert cli.model.session.calls_made() == STEPS * STAGES and not cli.model.session.plan.changed
    assert "VOID: the generator was trained against the private teacher" in Path("run/public/guarantee.md").read_text()
    assert leaks("run", teacher_weights("teachers/digits.ckpt")) == []


def _kept(cli: TranscriptionCLI) -> dict[str, torch.Tensor]:
    return {**networks(cli), "images": cli.model.stage_images, "labels": cli.model.stage_labels}


@pytest.mark.parametrize(
    ("train_on", "kind"),
    [("union", "LabelDP"), pytest.param("stage", "ForgetfulLabelDP", marks=pytest.mark.slow)],
)
def test_a_stage_survives_an_interruption_and_is_not_paid_for_again(folder: Path, train_on: str, kind: str) -> None:
    """But by the control, which loses its stage, from the start, since a checkpoint knows its class.

    Noise can be drawn again, so that two runs have the same answers.
    """
    noise = {"noise": {"class_path": "ReproducibleNoise", "init_args": {"seed": 1}}}
    settings = {**QUIET, "images": "both", "train_on": train_on, "kind": kind, "mechanism": noise}
    whole = run("whole", **settings)
    interrupted(LabelDP, STEPS + 1, lambda: run("run", **settings))
    saved = checkpoint()["stage"]
    assert (saved["begin"], saved["end"]) == (STEPS, 2 * STEPS)
    resumed = run("run", RESUME, **settings)
    assert resumed.model.steps_done == STEPS * STAGES
    assert resumed.model.session.calls_made() == STEPS * (STAGES if kind == "LabelDP" else STAGES + 1)
    if kind != "LabelDP":
        assert not torch.equal(saved["labels"], resumed.model.stage_labels)
        return
    assert not resumed.model.session.plan.changed and equal(_kept(whole), _kept(resumed))


def test_a_student_that_asks_at_every_step_pays_at_every_step(folder: Path) -> None:
    """The negative control of the cached answers."""
    assert run(**QUIET, kind="AskingLabelDP").model.session.calls_made() == 2 * STEPS * STAGES


@pytest.mark.parametrize("train_on", ["stage", "union"])
def test_a_finished_stage_is_not_kept_in_checkpoints(folder: Path, train_on: str) -> None:
    """Not its bytes either, which a slice of no rows brings along; a union of stages goes on, and is found."""
    model = run(**QUIET, train_on=train_on).model
    kept = BATCH_SIZE * STEPS * STAGES if train_on == "union" else 0
    assert len(checkpoint()["stage"]["labels"]) == kept
    written = Path("run/checkpoints/last.ckpt").read_bytes()
    for name in ("images", "labels", "candidates"):
        assert (getattr(model, f"stage_{name}").numpy().tobytes() in written) is bool(kept)


def _fitted(kind: type[LabelDP], teacher: torch.nn.Module) -> list[torch.Tensor]:
    seed_everything(5)
    mechanism = FixedLabels()
    module = of_digits(kind, mechanism=mechanism, teacher=teacher, images="prior", threshold=0.1)
    fit_script(module, steps=2, epochs=2)
    return mechanism.seen


def _same_candidates(kind: type[LabelDP]) -> bool:
    first, second = (_fitted(kind, teacher) for teacher in two_teachers())
    assert len(first) == 4 and all(int(rows.sum(dim=1).min()) >= 2 for rows in first)
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_candidates_are_the_student_s_alone(folder: Path) -> None:
    assert _same_candidates(LabelDP)
    assert not _same_candidates(WellInformedLabelDP), "candidates that know the teacher are noticed"


def test_a_plan_counts_a_stage_that_a_resumed_run_begins_and_does_not_end(folder: Path) -> None:
    """Stages of 4 steps become ones of 6 in the midst of the second: the last is cut off, and paid for."""
    settings: dict[str, Any] = {**QUIET, "epochs": 3}
    interrupted(LabelDP, STEPS + 1, lambda: run("run", **settings))
    model = run("run", RESUME, "--data.steps_per_epoch=6", **settings).model
    assert model.steps_done < model.stage_end
    assert model.session.calls_made() == model.session.plan.calls == 2 * STEPS + 2 * 6
    assert model.session.plan.calls > model.steps_done  # counted by the steps that are made, it would fall short


def test_only_whole_stages_are_begun_under_a_target(folder: Path) -> None:
    target = _answers(2 * STEPS + STEPS // 2)
    cli = run(**QUIET, epochs=4, mechanism={"target_epsilon": target})
    assert cli.model.steps_done == 2 * STEPS == cli.model.session.calls_made() == cli.model.session.plan.calls
    assert cli.model.session.account.epsilon() <= target
    assert cli.model.stage_end == cli.model.steps_done


def test_a_generator_that_saw_the_student_alone_is_bounded_by_the_answers(folder: Path) -> None:
    model = run(images="both", discriminator="student").model
    assert model.session.account.epsilon() == pytest.approx(_answers(STEPS * STAGES))
    updates = model.optimizer("generator").optimizer.state.values()
    assert {int(state["step"]) for state in updates} == {STEPS * STAGES}
