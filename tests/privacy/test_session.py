"""A run that goes on: its plan is fixed before the first call and never smaller, and its charges are its own."""

from __future__ import annotations

from typing import Any

import pytest

from privacy.mechanisms import NoisyGradients, Shape
from privacy.plan import Plan
from privacy.session import PrivacySession


def opened(state: dict[str, Any] | None = None) -> PrivacySession:
    session = PrivacySession(NoisyGradients(), Shape(4, 3))
    if state is not None:
        session.load(state)
    session.open(private_data="digits/train", run="one")
    return session


def plan(*fits: tuple[int, int | None]) -> Plan:
    """A plan after fits that each began with so many calls made and wanted so many in all."""
    state: dict[str, Any] | None = None
    for calls, wanted in fits:
        session = opened(state)
        while session.calls_made() < calls:
            session.charge(session.mechanism)
        session.fix_plan(lambda ahead=None if wanted is None else wanted - calls: ahead)  # type: ignore[misc]
        state = session.state()
    return session.plan


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


@pytest.mark.parametrize("change", [{"run": "two"}, {"private_data": "faces/train"}])
def test_a_state_of_another_run_or_other_data_is_refused(change: dict[str, str]) -> None:
    state = opened().state()
    assert opened(state).is_open
    with pytest.raises(ValueError, match="the checkpoint's privacy state is of run"):
        opened({**state, "charged": {**state["charged"], **change}})
