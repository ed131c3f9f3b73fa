"""Mechanisms that are chosen by earlier answers: an adversary that exceeds `compose`, and filters that it does not."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, norm

from privacy.accounting.composition import ORDERS, compose, fully_adaptive_epsilon, known_epsilon, squared_mu
from privacy.events import (
    Gaussian,
    LaplaceVotes,
    OneOf,
    RandomizedResponse,
    Release,
    Repeated,
    SampledGaussian,
    Unbounded,
)
from privacy.events.base import Relation, Unit
from privacy.numerics.epsilon import gaussian_epsilon

DELTA, TARGET = 1e-2, 1.0
#: The first run: 14 randomized responses, whose loss the adversary knows from the answers.
ROUNDS, EPSILON = 14, 0.1
FIRST: Mapping[Release, int] = {RandomizedResponse(EPSILON, 2): ROUNDS}

Composed = Callable[[Mapping[Release, int], float], float]
Curve = Callable[[float], float]


def responses(epsilon: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of binary randomized responses and their probabilities, exactly."""
    right = np.arange(count + 1)
    return epsilon * (2.0 * right - count), binom.pmf(right, count, 1 / (1 + math.exp(-epsilon)))


def of_responses(epsilon: float, count: int) -> Curve:
    """Hockey-stick divergence of `count` responses at any ε."""
    losses, chances = responses(epsilon, count)
    return lambda at: float(chances @ np.clip(-np.expm1(at - losses), 0, None))


def of_gaussian(mu: float) -> Curve:
    return lambda at: float(norm.cdf(-at / mu + mu / 2) - math.exp(at) * norm.cdf(-at / mu - mu / 2))


def second_runs(composed: Composed, target: float = TARGET) -> list[Curve]:
    """What the adversary may ask next, by the accounting that is given: as much of each kind as fits the target."""

    def fits(release: Release, count: int) -> bool:
        both = dict(FIRST)
        both[release] = both.get(release, 0) + count
        return composed(both, DELTA) <= target

    found: list[Curve] = [lambda at: max(0.0, -math.expm1(at))]  # nothing
    for epsilon in np.arange(0.1, 0.6, 0.04):
        most = bisect_left(range(1, 200), True, key=lambda n: not fits(RandomizedResponse(float(epsilon), 2), n))
        found += [of_responses(float(epsilon), most)] if most else []
    most_mu = bisect_left(range(1, 200), True, key=lambda n: not fits(Gaussian(n / 100), 1)) / 100
    return [*found, *([of_gaussian(most_mu)] if most_mu else [])]


def attained(choices: list[Curve]) -> float:
    """The ε at δ of an adversary that takes, for each loss of the first run, the choice that leaks most: exactly."""
    losses, chances = responses(EPSILON, ROUNDS)

    def delta(epsilon: float) -> float:
        return sum(
            chance * max(choice(epsilon - loss) for choice in choices)
            for loss, chance in zip(losses, chances, strict=True)
        )

    return float(brentq(lambda epsilon: delta(epsilon) - DELTA, 0.01, 5.0))


def test_an_adversary_that_chooses_the_second_run_exceeds_what_fixed_ones_compose_to() -> None:
    choices = second_runs(known_epsilon)
    assert max(attained([choice]) for choice in choices) <= TARGET, "each by itself, fixed beforehand, holds"
    assert attained(choices) > 1.065, "the choice does not"


def test_filters_hold_against_it() -> None:
    target = 1.5  # the first run alone needs 0.98
    choices, looser = (second_runs(composed, target) for composed in (fully_adaptive_epsilon, known_epsilon))
    assert len(choices) > 5, "something is left to choose from"
    assert attained(choices) <= target < attained(looser)


def test_the_filters_share_delta() -> None:
    for counts in ({Gaussian(0.3): 1}, {SampledGaussian(1.0, 0.01): 100}):
        assert fully_adaptive_epsilon(counts, DELTA) > fully_adaptive_epsilon(counts, 40 * DELTA)
    half = gaussian_epsilon(0.3, DELTA / 2)
    assert fully_adaptive_epsilon({Gaussian(0.3): 1}, DELTA) == pytest.approx(half, rel=1e-9)
    sampled, share = SampledGaussian(1.0, 0.01), DELTA / 2 / len(ORDERS)
    by_order = [  # Canonne, Kamath and Steinke 2020, Proposition 12
        100 * float(sampled.rdp(order)) + math.log(1 - 1 / order) - math.log(share * order) / (order - 1)
        for order in ORDERS
    ]
    assert fully_adaptive_epsilon({sampled: 100}, DELTA) == pytest.approx(min(by_order), rel=1e-9)


RELEASES: list[Release] = [
    Gaussian(0.3), Gaussian(2.0), RandomizedResponse(0.1, 2), RandomizedResponse(1.0, 10), LaplaceVotes(40.0),
    SampledGaussian(1.0, 0.01), Repeated(RandomizedResponse(0.5, 3), 8),
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(RELEASES), st.integers(0, 30), max_size=4), st.sampled_from([1e-5, 1e-3]))
def test_it_costs_no_less_than_what_is_fixed_beforehand(counts: dict[Release, int], delta: float) -> None:
    assert fully_adaptive_epsilon(counts, delta) >= compose(counts, delta).epsilon * (1 - 1e-6)


def test_edge_cases() -> None:
    assert fully_adaptive_epsilon({}, 1e-5) == fully_adaptive_epsilon({Unbounded("no noise"): 0}, 1e-5) == 0.0
    assert fully_adaptive_epsilon({Unbounded("no noise"): 1}, 1e-5) == math.inf
    assert fully_adaptive_epsilon({RandomizedResponse(0.01, 2): 3}, 1e-5) == pytest.approx(0.03)  # the sum of pure ones
    mixed = {Gaussian(0.1): 1, SampledGaussian(1.0, 0.1, unit=Unit.PERSON, relation=Relation.ADD_OR_REMOVE): 1}
    assert fully_adaptive_epsilon(mixed, 1e-5) == math.inf
    with pytest.raises(ValueError, match="count must be 0 or more and a whole number"):
        fully_adaptive_epsilon({Gaussian(0.1): -1}, 1e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0])
def test_a_pure_mechanism_is_dominated_by_its_gaussian(epsilon: float) -> None:
    """At every ε', and by no smaller one: at ε' = 0 both have the same total variation."""
    release = RandomizedResponse(epsilon, 2)
    gaussian, own = of_gaussian(math.sqrt(squared_mu(release))), of_responses(epsilon, 1)
    assert all(own(at) <= gaussian(at) + 1e-12 for at in np.linspace(0, epsilon, 50))
    assert own(0.0) == pytest.approx(gaussian(0.0))
    less = of_gaussian(math.sqrt(squared_mu(release)) * 0.99)
    assert own(0.0) > less(0.0)


def test_composed_events_count_each_of_their_releases() -> None:
    one = RandomizedResponse(0.5, 3)
    assert squared_mu(Repeated(one, 8)) == pytest.approx(8 * squared_mu(one))
    assert squared_mu(OneOf((((Gaussian(0.1), 4),), ((Gaussian(0.3), 1),)))) == pytest.approx(0.09)
    assert squared_mu(SampledGaussian(1.0, 0.01)) == math.inf
