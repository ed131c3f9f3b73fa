"""Answers without noise: free of a teacher that is bounded, bounded by nothing otherwise."""

from __future__ import annotations

import math

import pytest
import torch
from support.plans import plan_of
from support.short_names import budgeted

from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose
from privacy.annotators import Annotator, GradientAnnotator
from privacy.annotators.label import LabelAnnotator
from privacy.annotators.response import ResponseAnnotator
from privacy.events import Release, SampledGaussian
from privacy.identity import Training, new_training_id

TEACHER: dict[Release, int] = {SampledGaussian(2.0, 0.05): 40}


def annotator(releases: dict[Release, int] | None, **settings: object) -> ResponseAnnotator:
    made = ResponseAnnotator(**budgeted(settings))  # type: ignore[arg-type]
    made.bind(batch_size=4, num_classes=3)
    made.open(private_data="digits/train", training=Training(new_training_id(), releases=releases))
    return made


def test_answers_of_a_bounded_teacher_cost_what_it_cost() -> None:
    made = annotator(TEACHER)
    logits = torch.randn(4, 3)
    for _ in range(3):
        assert torch.equal(made.annotate(logits), logits)
    assert made.account.epsilon() == compose(TEACHER, 1e-5).epsilon
    assert made.account.unbounded() == []
    assert made.account.queries() == 12


def test_answers_of_any_other_teacher_are_bounded_by_nothing() -> None:
    made = annotator(None)
    made.annotate(torch.randn(4, 3))
    assert made.account.epsilon() == math.inf
    assert made.account.unbounded() == ["the teacher's answers were released without noise"]
    assert made.account.epsilon_published() == math.inf


def test_a_target_below_the_teachers_own_is_refused() -> None:
    own = compose(TEACHER, 1e-5).epsilon
    annotator(TEACHER, target_epsilon=own).annotate(torch.randn(4, 3))
    for made in (annotator(TEACHER, target_epsilon=0.99 * own), annotator(None, target_epsilon=1e6)):
        with pytest.raises(BudgetExceeded):
            made.annotate(torch.randn(4, 3))
        assert made.calls_made() == 0


def test_bad_answers_are_refused() -> None:
    made = annotator(TEACHER)
    with pytest.raises(ValueError, match="shape"):
        made.annotate(torch.randn(5, 3))
    assert made.calls_made() == 0
    with pytest.raises(ValueError, match="finite"):
        made.annotate(torch.full((4, 3), math.nan))
    assert made.calls_made() == 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (GradientAnnotator(), "floating-point"),
        (LabelAnnotator(), "whole-number thresholds"),
        (ResponseAnnotator(), None),
    ],
)
def test_the_guarantee_says_how_noise_was_drawn(made: Annotator, said: str | None) -> None:
    made.bind(batch_size=4, num_classes=3, paper="LabelDP" if isinstance(made, LabelAnnotator) else "C")
    made.open(private_data="digits/train")
    about = [
        text
        for text in made.guarantee(artefacts=("student",), planned=plan_of(made, 1)).assumptions
        if "noise came" in text
    ]
    assert len(about) == (said is not None) and all(str(said) in text for text in about)
