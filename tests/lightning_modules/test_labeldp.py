"""LabelDP: stages that are labelled once, what they are charged, and what survives an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import BATCH_SIZE, RESUME, checkpoint, distil, equal, interrupted, leaks, networks, teacher_weights

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
    assert leaks("run", teacher_weights("teachers/digits.ckpt")) == []


@pytest.mark.parametrize("train_on", ["stage", "union"])
def test_a_finished_stage_is_not_kept_in_checkpoints(folder: Path, train_on: str) -> None:
    """Not its bytes either, which a slice of no rows brings along; a union of stages goes on, and is found."""
    model = run(**QUIET, train_on=train_on).model
    kept = BATCH_SIZE * STEPS * STAGES if train_on == "union" else 0
    assert len(checkpoint()["stage"]["labels"]) == kept
    written = Path("run/checkpoints/last.ckpt").read_bytes()
    for name in ("images", "labels", "candidates"):
        assert (getattr(model, f"stage_{name}").numpy().tobytes() in written) is bool(kept)


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
