"""Labels through the session: released with the probabilities that are charged for, and charged before."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats
from support.sessions import asked, session_of
from torch.nn import functional as F

from privacy.accounting.composition import compose
from privacy.events import RandomizedResponse, Repeated
from privacy.mechanisms import Mechanism, NoisyGradients, NoisyLabels, Shape
from privacy.mechanisms.base import ReproducibleNoise
from privacy.mechanisms.noisy_labels import (
    keep_threshold,
    randomized_response,
    threshold_candidates,
    top_k_candidates,
)
from privacy.session import PrivacySession

B, CLASSES = 4000, 10


def session(kind: type[Mechanism] = NoisyLabels, *, rows: int = B, **settings: Any) -> PrivacySession:
    return session_of(kind, Shape(rows, CLASSES, "DPSD"), **settings)


def teacher(rows: int = B) -> torch.Tensor:
    return torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(1))


def sets(k: int, rows: int = B) -> torch.Tensor:
    return top_k_candidates(torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(2)), k=k)


def answers_fit(answers: torch.Tensor, labels: torch.Tensor, candidates: torch.Tensor, *, epsilon: float) -> bool:
    """Chi-square over: kept, each rank among the other candidates; outside of the set, each rank in it."""
    inside = candidates.gather(1, labels[:, None])[:, 0]
    assert bool(candidates.gather(1, answers[:, None]).all())
    k = int(candidates[0].sum())
    rank = (candidates.long().cumsum(dim=1) - 1).gather(1, answers[:, None])[:, 0]
    own = (candidates.long().cumsum(dim=1) - 1).gather(1, labels[:, None])[:, 0]
    shifted = (rank - own)[inside] % k  # 0: kept
    p = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    values = [
        stats.chisquare(
            torch.bincount(shifted, minlength=k).numpy(),
            [float(inside.sum()) * (p if i == 0 else (1 - p) / (k - 1)) for i in range(k)],
        ).pvalue
    ]
    if not bool(inside.all()):
        values.append(stats.chisquare(torch.bincount(rank[~inside], minlength=k).numpy()).pvalue)
    return bool(min(values) > 1e-8)


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_answers_have_the_frequencies_that_are_charged_for(k: int, epsilon: float) -> None:
    """Accepted as they are; answers given at 3/2 of ε are refused."""
    logits, candidates = teacher(100_000), sets(k, 100_000)
    for factor in (1.0, 2 / 3, 3 / 2):
        answers = asked(session(rows=100_000, epsilon=factor * epsilon), logits, candidates)
        assert answers_fit(answers, logits.argmax(dim=1), candidates, epsilon=epsilon) is (factor == 1)


def test_a_batch_is_charged_as_that_many_answers() -> None:
    made = session(rows=100, epsilon=1.0, smallest=3)
    asked(made, teacher(100), sets(3, 100), size=3)
    assert made.account.epsilon() == pytest.approx(67.9245, abs=5e-5)
    assert made.account.epsilon_published() == 1.0
    assert made.account.queries() == 100
    assert made.calls_made() == 1


def test_sizes_fixed_beforehand_are_charged_for_themselves_and_others_for_the_smallest() -> None:
    fixed = session(rows=50, smallest=2)
    asked(fixed, teacher(50), sets(10, 50), size=10)
    asked(fixed, teacher(50), sets(2, 50), size=2)
    assert fixed.account.epsilon() == pytest.approx(58.7973, abs=5e-5)
    varying = session(rows=50, smallest=2)
    for k in (10, 2):
        asked(varying, teacher(50), sets(k, 50))
    assert varying.account.epsilon() == pytest.approx(79.8413, abs=5e-5)
    assert compose({Repeated(RandomizedResponse(1.0, 2), 50): 2}, 1e-5).epsilon == varying.account.epsilon()


@pytest.mark.parametrize(("k", "size"), [(2, None), (2, 3), (4, 3), (2, 2)])
def test_sets_that_are_not_what_is_charged_for_are_refused(k: int, size: int | None) -> None:
    made = session(smallest=3)
    with pytest.raises(ValueError, match="candidates must hold"):
        asked(made, teacher(), sets(k), size=size)
    assert not made.account.counts()


def test_sets_are_bool_or_their_sum_would_pass_for_their_size() -> None:
    made = session(smallest=3)
    with pytest.raises(ValueError, match=r"candidates must be bool, got torch\.int64"):
        asked(made, teacher(), 3 * F.one_hot(teacher().argmax(dim=1), CLASSES), size=3)
    assert not made.account.counts()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_teacher_that_fails_is_charged_and_answers_all_the_same(value: float) -> None:
    made = session()
    answers = asked(made, torch.full((B, CLASSES), value), sets(3))
    assert bool(sets(3).gather(1, answers[:, None]).all())
    assert made.calls_made() == 1


@pytest.mark.parametrize("kind", [NoisyGradients, NoisyLabels])
def test_what_is_revealed_is_charged_once_and_bounded_by_nothing(kind: type[Mechanism]) -> None:
    made = session(kind, rows=8)
    before = made.account.epsilon_published(counts={made.cost: 5})
    for _ in range(3):
        made.charge_nonprivate_access("the generator was trained against the teacher")
    assert sum(made.account.counts().values()) == 1
    assert made.calls_made() == 0
    assert made.account.epsilon() == math.inf
    assert made.account.unbounded() == ["the generator was trained against the teacher"]
    # DPSD counts it for nothing.
    assert made.account.epsilon_published(counts={**made.account.counts(), made.cost: 5}) == before


WORDS = 2**64


@given(epsilon=st.floats(0, 36), k=st.integers(2, 300))
def test_integer_thresholds_never_exceed_epsilon(epsilon: float, k: int) -> None:
    kept = keep_threshold(epsilon, k)
    given_up = WORDS - kept
    # Exact integers: kept / (given_up / (k - 1)) <= e^epsilon.
    assert kept * (k - 1) <= math.exp(epsilon) * (1 + 1e-15) * given_up
    if epsilon < 30:
        assert kept * (k - 1) == pytest.approx(math.exp(epsilon) * given_up, rel=1e-4)
    if 0.1 < epsilon < 20:  # the mutant keeps the label as if e^(1.5 epsilon) were allowed
        cheat = keep_threshold(1.5 * epsilon, k)
        assert cheat * (k - 1) > math.exp(epsilon) * (WORDS - cheat)


def test_sets_of_several_sizes_in_one_batch() -> None:
    labels, candidates = teacher(2 * B), torch.cat([sets(2), sets(3)])
    answers = asked(session(rows=2 * B, epsilon=0.5), labels, candidates)
    for rows in (slice(B), slice(B, None)):
        fits = partial(answers_fit, answers[rows], labels[rows].argmax(dim=1))
        assert fits(candidates[rows], epsilon=0.5) and not fits(candidates[rows], epsilon=2.0)


def test_threshold_candidates_are_topped_up_to_two() -> None:
    probabilities = torch.tensor([[0.97, 0.01, 0.02], [0.4, 0.3, 0.3]])
    assert threshold_candidates(probabilities).tolist() == [[True, False, True], [True, True, True]]
    assert threshold_candidates(probabilities, threshold=0.35).tolist()[1][0] is True


def test_a_set_of_one_candidate_is_refused() -> None:
    one = torch.tensor([[True, False, False]])
    with pytest.raises(ValueError, match="2 or more"):
        randomized_response(torch.tensor([0]), one, epsilon=1.0, noise=ReproducibleNoise(seed=0))


def test_each_row_has_as_many_candidates_as_it_was_given() -> None:
    scores = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    sizes = torch.arange(64) % 9 + 2
    candidates = top_k_candidates(scores, k=sizes)
    assert torch.equal(candidates.sum(dim=1), sizes)
    # Each is among the largest: none that is left out exceeds one that is in.
    inside = scores.masked_fill(~candidates, math.inf).amin(dim=1)
    outside = scores.masked_fill(candidates, -math.inf).amax(dim=1)
    assert bool((inside >= outside).all())
    assert torch.equal(top_k_candidates(scores[:1], k=3), top_k_candidates(scores[:1], k=torch.tensor([3])))
