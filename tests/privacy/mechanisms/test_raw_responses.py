"""Answers without noise: free of a teacher that is bounded, bounded by nothing otherwise."""

from __future__ import annotations

import math

import pytest
import torch
from support.sessions import asked, session_of

from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose
from privacy.events import Release, SampledGaussian
from privacy.identity import Training, new_training_id
from privacy.mechanisms import RawResponses, Shape
from privacy.session import PrivacySession

TEACHER: dict[Release, int] = {SampledGaussian(2.0, 0.05): 40}


def session(releases: dict[Release, int] | None, **settings: object) -> PrivacySession:
    made = session_of(RawResponses, Shape(4, 3), opened=False, **settings)
    made.open(private_data="digits/train", training=Training(new_training_id(), releases=releases))
    return made


def test_answers_of_a_bounded_teacher_cost_what_it_cost() -> None:
    made = session(TEACHER)
    logits = torch.randn(4, 3)
    for _ in range(3):
        assert torch.equal(asked(made, logits), logits)
    assert made.account.epsilon() == compose(TEACHER, 1e-5).epsilon
    assert made.account.unbounded() == []
    assert made.account.queries() == 12


def test_a_target_below_the_teachers_own_is_refused() -> None:
    own = compose(TEACHER, 1e-5).epsilon
    asked(session(TEACHER, target_epsilon=own), torch.randn(4, 3))
    for made in (session(TEACHER, target_epsilon=0.99 * own), session(None, target_epsilon=1e6)):
        with pytest.raises(BudgetExceeded):
            asked(made, torch.randn(4, 3))
        assert made.calls_made() == 0


def test_answers_that_are_not_finite_are_refused_and_charged() -> None:
    made = session(TEACHER)
    with pytest.raises(ValueError, match="finite"):
        asked(made, torch.full((4, 3), math.nan))
    assert made.calls_made() == 1
