"""The plan that a guarantee is about: fixed before the first call, never smaller, and changed where it grew."""

from __future__ import annotations

from typing import Any

from support.short_names import budgeted

from lightning_modules.private_run import PrivateRun
from privacy.annotators import GradientAnnotator
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
