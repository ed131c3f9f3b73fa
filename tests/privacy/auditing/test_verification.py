"""Discrete mechanisms by enumeration; DPSD's Eq. (5) as printed must be caught."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attacks import dpsd_eq5_table, randomized_response_table

from privacy import RandomizedResponse, compose_delta, worst_case_delta, worst_case_epsilon

MASK = [True] * 3 + [False] * 7


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("size", [2, 3, 10])
def test_selective_randomized_response_is_exactly_epsilon(epsilon: float, size: int) -> None:
    table = randomized_response_table(epsilon, [True] * size + [False] * (10 - size))
    assert worst_case_epsilon(table) == pytest.approx(epsilon, rel=1e-9)
    assert worst_case_delta(table, epsilon * (1 + 1e-9)) < 1e-12 < worst_case_delta(table, 0.9 * epsilon)


def test_eq5_as_printed_is_unbounded() -> None:
    table = dpsd_eq5_table(1.0, MASK)
    assert worst_case_epsilon(table) == math.inf
    assert worst_case_delta(table, math.inf) == pytest.approx(0.597357, abs=5e-7)
    assert worst_case_delta(randomized_response_table(1.0, MASK), math.inf) == 0.0


@given(st.floats(0.05, 4.0), st.floats(0.0, 4.0), st.integers(2, 10))
def test_the_composed_bound_covers_moves_out_of_the_set(epsilon: float, at: float, size: int) -> None:
    """Teacher's label inside to inside, inside to outside and back: plain k-ary randomized response dominates."""
    table = randomized_response_table(epsilon, [True] * size + [False])
    assert worst_case_delta(table, at) <= compose_delta({RandomizedResponse(epsilon, size): 1}, at) * (1 + 1e-6) + 1e-12


def test_two_answers_by_enumeration() -> None:
    table = randomized_response_table(1.0, [True] * 3)
    pair = np.array([[a * b for a, b in itertools.product(row, row)] for row in table])
    for at in (0.0, 0.5, 1.0, 1.5):
        assert worst_case_delta(pair, at) == pytest.approx(compose_delta({RandomizedResponse(1.0, 3): 2}, at), rel=1e-6)
    # Negative control: two answers sold at the price of one.
    assert worst_case_delta(pair, 1.0) > compose_delta({RandomizedResponse(1.0, 3): 1}, 1.0)


def test_both_directions_are_looked_at() -> None:
    table = [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]
    assert worst_case_delta(table, 0.0) == pytest.approx(0.5)
    assert worst_case_delta(table, math.inf) == pytest.approx(0.5)
    assert worst_case_epsilon(table) == math.inf


def test_an_output_nobody_gives_is_no_leak() -> None:
    assert worst_case_epsilon([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]) == 0.0
    assert worst_case_epsilon([[1.0]]) == 0.0


def test_large_epsilon_does_not_overflow() -> None:
    assert worst_case_delta([[1.0 - 1e-300, 1e-300], [1e-300, 1.0 - 1e-300]], 1e4) == 0.0
    assert worst_case_delta([[1.0, 0.0], [1e-300, 1.0]], 1e4) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [[0.5, 0.5], [[0.5, 0.6]], [[1.5, -0.5]], [[]], [[math.nan, 1.0]]])
def test_what_is_no_mechanism_raises(bad: object) -> None:
    with pytest.raises(ValueError, match="probabilities must"):
        worst_case_epsilon(bad)  # type: ignore[arg-type]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        worst_case_delta([[1.0]], -1.0)
