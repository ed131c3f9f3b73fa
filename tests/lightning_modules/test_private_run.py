"""The plan that a guarantee is about: fixed before the first call, never smaller, and changed where it grew."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.short_names import budgeted

from lightning_modules.private_run import PrivateRun
from privacy import Budget
from privacy.annotators import GradientAnnotator
from privacy.identity import CheckpointError
from privacy.plan import Plan


def plan(*fits: tuple[int, int | None], **settings: Any) -> Plan:
    """A plan after fits that each began with so many calls made and wanted so many in all."""
    made: dict[str, Any] = {}
    annotator = GradientAnnotator(**budgeted(settings))
    annotator.bind(batch_size=4, num_classes=3)
    annotator.open(private_data="digits/train")
    for calls, wanted in fits:
        while annotator.calls_made() < calls:
            annotator.account.charge(annotator.charge)
        run = PrivateRun(annotator)
        if made:
            run.load(made)
        run.fix_plan(lambda ahead=None if wanted is None else wanted - calls: ahead)  # type: ignore[misc]
        made = run.state()
    return run.plan


def covered(made: Plan) -> int | None:
    """Calls that are covered whatever is made of them."""
    return None if made.covered is None else sum((made.covered.charges or {}).values())


def test_the_first_plan_is_covered() -> None:
    assert covered(plan((0, 100))) == 100
    assert covered(plan((0, None))) is None


def test_a_run_that_is_resumed_for_less_covers_its_first_plan() -> None:
    made = plan((0, 100), (40, 60))
    assert covered(made) == 100 and not made.changed


def test_a_run_that_is_resumed_for_more_has_a_plan_that_was_changed() -> None:
    for longer, calls in (
        (plan((0, 100), (40, 101)), 101),
        (plan((0, 100), (40, None)), 100),
        (plan((0, None), (40, 100)), 100),
    ):
        assert longer.changed and covered(longer) == calls


def test_a_plan_may_change_before_the_first_call() -> None:
    made = plan((0, 100), (0, 60))
    assert covered(made) == 60 and not made.changed


@pytest.mark.parametrize("noise", [100.0, 50.0])
def test_noise_that_was_changed_is_said_wherever_a_run_is_resumed(noise: float) -> None:
    """From Python as well, where no command line compares settings."""
    annotator = GradientAnnotator(noise_multiplier=100.0)
    annotator.bind(batch_size=4, num_classes=3)
    annotator.open(private_data="digits/train")
    (run := PrivateRun(annotator)).fix_plan(lambda: 10)
    annotator.annotate(torch.randn(4, 3))
    annotator.noise_multiplier = noise
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run.fix_plan(lambda: 9)
    assert ["THE NOISE WAS CHANGED" in str(one.message) for one in said] == ([True] if noise == 50.0 else [])


@pytest.mark.parametrize(("judged_on", "known"), [("faces/train", True), ("digits/train", False)])
def test_delta_is_compared_with_the_number_of_the_teachers_own_records(judged_on: str, known: bool) -> None:
    annotator = GradientAnnotator(budget=Budget(delta=1e-3))
    annotator.bind(batch_size=4, num_classes=3)
    data = SimpleNamespace(private_data=judged_on, num_records=100)
    trainer: Any = SimpleNamespace(datamodule=data, ckpt_path=None)
    PrivateRun(annotator).open(trainer, private_data="faces/train", ledger=None, training=None)
    statement = annotator.guarantee(artefacts=["student"], planned=None)
    assert any("which was not given" in text for text in statement.assumptions) is not known


def test_a_run_whose_charges_a_class_of_ones_own_keeps_back_is_not_resumed() -> None:
    def opened(ckpt_path: str | None, state: Any = None) -> PrivateRun:
        annotator = GradientAnnotator()
        annotator.bind(batch_size=4, num_classes=3)
        run = PrivateRun(annotator)
        if state is not None:
            run.load(state)
        trainer: Any = SimpleNamespace(datamodule=None, ckpt_path=ckpt_path, lightning_module=run)
        run.open(trainer, private_data="faces/train", ledger=None, training=None)
        return run

    never_opened = PrivateRun(GradientAnnotator()).state()  # of a fit that failed before
    for state in (opened(None).state(), never_opened):
        assert opened("last.ckpt", state).annotator.is_open
    with pytest.raises(CheckpointError, match="on_load_checkpoint of PrivateRun must call that of its base class"):
        opened("last.ckpt")
