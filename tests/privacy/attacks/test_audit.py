"""The bounds of the game are valid and reach far; a single answer by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import binom
from support.auditing import Sampler, audit, randomized_response_table, worst_case_delta

from privacy import RandomizedResponse, compose, gaussian_epsilon
from privacy.attacks.result import one_run_epsilon

DELTA = 1e-5


def gaussian(rng: np.random.Generator, mean: float) -> Sampler:
    return lambda count: rng.normal(mean, 1.0, count)


def test_the_bound_is_valid_and_near() -> None:
    rng = np.random.default_rng(0)
    truth = gaussian_epsilon(2.0, DELTA)
    least = {"any": 3.0, "gaussian": 0.9 * truth}
    for method in ("any", "gaussian"):
        there, away = gaussian(rng, 2.0), gaussian(rng, 0.0)
        found = audit(there, away, lambda x: x, trials=20_000, delta=DELTA, confidence=0.99, method=method)
        assert least[method] < found.epsilon_lower < truth


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Two mechanisms that are alike, at confidence 0.5; the mutant picks its threshold on the draws that it counts."""
    rng = np.random.default_rng(1)

    def shown(there: Sampler, away: Sampler) -> bool:
        return audit(there, away, lambda x: x, trials=400, delta=0.0, confidence=0.5).epsilon_lower > 0.0

    def peeking() -> bool:
        there, away = rng.normal(0, 1, 200), rng.normal(0, 1, 200)
        return shown(lambda count: there, lambda count: away)

    assert sum(shown(gaussian(rng, 0.0), gaussian(rng, 0.0)) for _ in range(100)) <= 50
    assert sum(peeking() for _ in range(100)) > 65


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-4])
def test_guesses_about_one_run_are_as_unlikely_as_the_paper_s_code_says(delta: float) -> None:
    """The listing of Steinke, Nasr and Jagielski 2023, by scipy's binomial, which has twice delta for each coin."""

    def chance_of(right: int, guesses: int, records: int, epsilon: float, delta: float) -> float:
        accuracy = 1 / (1 + np.exp(-epsilon))
        fewer = np.arange(1, right + 1)
        most = float((binom.pmf(right - fewer, guesses, accuracy).cumsum() / fewer).max())
        return float(binom.sf(right - 1, guesses, accuracy)) + 2 * records * delta * most

    for right, guesses, records in ((30, 40, 40), (95, 100, 400), (250, 400, 4000)):
        found = one_run_epsilon(right, guesses, records=records, delta=delta, confidence=0.9)
        assert chance_of(right, guesses, records, found, delta) == pytest.approx(0.1, rel=1e-5)


@given(st.floats(0.05, 4.0), st.floats(-9.0, -0.1), st.integers(2, 10))
def test_the_composed_bound_covers_moves_out_of_the_set(epsilon: float, log_delta: float, size: int) -> None:
    """Teacher's label inside to inside, inside to outside and back: plain k-ary randomized response dominates."""
    table = randomized_response_table(epsilon, [True] * size + [False])
    bound = compose({RandomizedResponse(epsilon, size): 1}, 10.0**log_delta).epsilon
    assert worst_case_delta(table, bound) <= 10.0**log_delta * (1 + 1e-6) + 1e-12
    # Negative control: nine tenths of it are no bound.
    assert bound == 0.0 or worst_case_delta(table, 0.9 * bound) > 10.0**log_delta
