"""Selective randomized response: exact integer probabilities, and answers that follow them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats
from support.auditing import worst_case_epsilon

from privacy.mechanisms.noise import ReproducibleNoise
from privacy.mechanisms.noisy_labels import (
    keep_threshold,
    randomized_response,
    threshold_candidates,
    top_k_candidates,
)

WORDS = 2**64


def transition(epsilon: float, k: int, num_classes: int, keep: float | None = None) -> np.ndarray:
    """Rows: the teacher's label; columns: answers; the candidates are the first k classes."""
    stay = keep_threshold(epsilon, k) / WORDS if keep is None else keep
    rows = np.zeros((num_classes, num_classes))
    rows[:, :k] = 1 / k
    for label in range(k):
        rows[label, :k] = (1 - stay) / (k - 1)
        rows[label, label] = stay
    return rows


@given(epsilon=st.floats(0, 36), k=st.integers(2, 300))
def test_integer_thresholds_never_exceed_epsilon(epsilon: float, k: int) -> None:
    kept = keep_threshold(epsilon, k)
    given_up = WORDS - kept
    # Exact integers: kept / (given_up / (k - 1)) <= e^epsilon.
    assert kept * (k - 1) <= math.exp(epsilon) * (1 + 1e-15) * given_up
    if epsilon < 30:
        assert kept * (k - 1) == pytest.approx(math.exp(epsilon) * given_up, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "k"), [(0.1, 2), (1.0, 3), (1.0, 10), (4.0, 5)])
def test_transition_matrix_has_the_stated_worst_case(epsilon: float, k: int) -> None:
    assert worst_case_epsilon(transition(epsilon, k, 10)) == pytest.approx(epsilon, rel=1e-6)
    # The mutant keeps the label as if e^(1.5 epsilon) were allowed.
    cheat = math.exp(1.5 * epsilon) / (math.exp(1.5 * epsilon) + k - 1)
    assert worst_case_epsilon(transition(epsilon, k, 10, keep=cheat)) > 1.4 * epsilon


def p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    support = expected > 0
    assert observed[~support].sum() == 0
    return float(stats.chisquare(observed[support], expected[support] * observed.sum()).pvalue)


def test_sets_of_several_sizes_in_one_batch() -> None:
    draws = 20_000
    candidates = torch.zeros(2 * draws, 4, dtype=torch.bool)
    candidates[:draws, [1, 3]] = True
    candidates[draws:, [0, 1, 2]] = True
    answers = randomized_response(
        torch.ones(2 * draws, dtype=torch.long), candidates, epsilon=0.5, noise=ReproducibleNoise(seed=3)
    )
    kept = math.exp(0.5) / (math.exp(0.5) + 1), math.exp(0.5) / (math.exp(0.5) + 2)
    first = np.bincount(answers[:draws].numpy(), minlength=4)
    second = np.bincount(answers[draws:].numpy(), minlength=4)
    assert p_value(first, np.array([0, kept[0], 0, 1 - kept[0]])) > 1e-3
    assert p_value(second, np.array([(1 - kept[1]) / 2, kept[1], (1 - kept[1]) / 2, 0])) > 1e-3


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
