"""A run that goes on: its plan is fixed before the first call and never smaller, and its charges are its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from privacy.events import Gaussian
from privacy.identity import Training
from privacy.mechanisms import NoisyGradients, RawResponses, Shape
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


@pytest.mark.parametrize(
    ("fits", "calls", "changed"),
    [
        ([(0, 100)], 100, False),
        ([(0, None)], None, False),
        ([(0, 100), (0, 60)], 60, False),  # before the first call it may change
        ([(0, 100), (40, 60)], 100, False),  # resumed for less
        ([(0, 100), (40, 101)], 101, True),
        ([(0, 100), (40, None)], 100, True),
        ([(0, None), (40, 100)], 100, True),
    ],
)
def test_what_a_plan_covers_after_several_fits(
    fits: list[tuple[int, int | None]], calls: int | None, changed: bool
) -> None:
    made = plan(*fits)
    assert (sum(made.charges.values()) if made.calls is not None or made.charges else None) == calls
    assert made.changed is changed


@pytest.mark.parametrize("change", [{"run": "two"}, {"private_data": "faces/train"}])
def test_a_state_of_another_run_or_other_data_is_refused(change: dict[str, str]) -> None:
    state = opened().state()
    assert opened(state).is_open
    with pytest.raises(ValueError, match="the checkpoint's privacy state is of run"):
        opened({**state, "charged": {**state["charged"], **change}})


def test_the_use_of_a_teacher_of_unknown_training_is_not_covered_by_the_bound_of_the_one_that_answers() -> None:
    session = PrivacySession(NoisyGradients(), Shape(4, 3))
    session.open(private_data="digits/train", training=Training("ab" * 8, releases={Gaussian(mu=0.1): 1}))
    session.charge_nonprivate_access("of the teacher that answers")
    assert session.account.epsilon() < 1
    session.charge_nonprivate_access("of another", training=session.admit(None))
    assert math.isinf(session.account.epsilon())


@pytest.mark.parametrize("rows", [(), (torch.zeros(4, 3), torch.zeros(400, 3))], ids=["none", "another"])
def test_nothing_but_what_is_charged_for_is_released(rows: tuple[torch.Tensor, ...]) -> None:
    session = PrivacySession(RawResponses(), Shape(4, 3))
    session.open(private_data="digits/train")
    with pytest.raises(ValueError, match=r"got none|must have the shape"):
        session.release(session.mechanism, *rows)
    assert not session.calls_made()
    session.release(session.mechanism, torch.zeros(4, 3))
    assert session.calls_made() == 1
