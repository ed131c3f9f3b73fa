"""The plan that a guarantee is about: fixed before the first call, never smaller, and void where it grew."""

from __future__ import annotations

from lightning_modules.query_plan import QueryPlan


def everything(left: int) -> int:
    return left


def plan(*fits: tuple[int, int | None]) -> QueryPlan:
    """A plan after fits that each began with so many calls made and wanted so many in all."""
    made = QueryPlan()
    for calls, wanted in fits:
        again = QueryPlan()
        again.load(made.state())
        again.fix(wanted, made=calls, affordable=everything)
        made = again
    return made


def test_the_first_plan_is_covered() -> None:
    assert plan((0, 100)).covered == 100
    assert plan((0, None)).covered is None


def test_a_run_that_is_resumed_for_less_covers_its_first_plan() -> None:
    assert plan((0, 100), (40, 60)).covered == 100


def test_a_run_that_is_resumed_for_more_covers_what_was_released() -> None:
    for longer in (plan((0, 100), (40, 101)), plan((0, 100), (40, None)), plan((0, None), (40, 100))):
        assert longer.changed and longer.covered is None


def test_a_plan_may_change_before_the_first_call() -> None:
    assert plan((0, 100), (0, 300)).covered == 300


def test_a_plan_that_the_target_no_longer_allows_ends_where_it_must() -> None:
    made = plan((0, 100))
    made.fix(60, made=40, affordable=lambda left: min(left, 10))
    assert made.covered == 50
