"""Every record-level figure of the design, and mutants in which a bound is broken."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from scipy.stats import binom
from support.closed_forms import gaussian_delta, rdp_compose

from privacy import (
    Gaussian,
    LaplaceVotes,
    RandomizedResponse,
    RevealedGaussian,
    SampledGaussian,
    compose,
)
from privacy.accounting import composition
from privacy.accounting.composition import fully_adaptive_epsilon
from privacy.events import Release, Repeated
from privacy.numerics import pld

DELTA = 1e-5


def exact_delta(counts: dict[RandomizedResponse, int], epsilon: float) -> Any:
    """δ of randomized responses at 400 digits, by the formula as printed, from losses that are exact fractions."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(400):
        table = {Fraction(0): mpmath.mpf(1)}
        for one in Counter(counts).elements():
            loss, odds, before = Fraction(one.epsilon), mpmath.exp(one.epsilon), table
            table = Counter()
            for step, weight in ((loss, odds), (0, one.num_candidates - 2), (-loss, 1)):
                for lost, mass in before.items():
                    table[lost + step] += mass * weight / (odds + one.num_candidates - 1)
        gaps = ((Fraction(epsilon) - loss, mass) for loss, mass in table.items() if loss > epsilon)
        return sum(-mass * mpmath.expm1(mpmath.mpf(gap.numerator) / gap.denominator) for gap, mass in gaps)


@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize(
    "parts",
    [[(1.0, 10, 1)], [(1.0, 10, 12)], [(0.3, 2, 40)], [(1.0, 10, 10), (1.0, 2, 10)], [(2.0, 5, 7), (2.0, 3, 3)]],
)
def test_randomized_response_is_exact(parts: list[tuple[float, int, int]], delta: float) -> None:
    counts = {RandomizedResponse(epsilon, k): n for epsilon, k, n in parts}
    reading = compose(counts, delta)
    assert reading.method == "exact"
    assert float(exact_delta(counts, reading.epsilon)) == pytest.approx(delta, rel=1e-6)
    assert exact_delta(counts, reading.epsilon * 0.999) > delta


TINY = [
    {RandomizedResponse(1e-6, 2): 2},
    {RandomizedResponse(0.1, 2): 10},
    {RandomizedResponse(0.7, 3): 3},
    {RandomizedResponse(0.1, 2): 5, RandomizedResponse(0.1 + 5e-11, 2): 5},
]


def moved_to_the_grid(grid: float, losses: list[float], masses: list[float], place: Any = pld._place) -> Any:
    return place(grid, [round(loss / grid, 8) * grid for loss in losses], masses)


MUTANTS = {
    "events.base.rounded_up": lambda value, _: value,
    "numerics.pld._GRID": 0.0,
    "numerics.pld._place": moved_to_the_grid,
}


@pytest.mark.parametrize("broken", ["", *MUTANTS])
def test_no_epsilon_lies_below_the_exact_one_at_the_smallest_delta(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Ten responses of 0.1 cost more than 1: the float that is called 0.1 lies above it."""
    monkeypatch.setattr(composition, "_compose", composition._compose.__wrapped__)  # without memory
    if broken:
        monkeypatch.setattr(f"privacy.{broken}", MUTANTS[broken])
    exceeded = [
        (counts, delta)
        for counts in TINY
        for delta in (1e-5, 1.0687550304706323e-10, 1e-20, 4e-32, 1e-100, 1e-300)
        if exact_delta(counts, compose(counts, delta).epsilon) > delta
    ]
    assert bool(exceeded) is bool(broken), exceeded
    assert compose({LaplaceVotes(3.0): 1}, 1e-300).epsilon >= Fraction(2, 3)


@pytest.mark.parametrize("broken", [False, True])
def test_no_mechanism_makes_a_ledger_unreadable(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may ask for any number: nothing bounds it, and every later figure is infinite, not an error."""
    kinds: list[Callable[[float], Release]] = [
        Gaussian, lambda size: RandomizedResponse(size, 10), lambda size: LaplaceVotes(2 / size),
        lambda size: SampledGaussian(1 / size, 0.1), lambda size: Repeated(RandomizedResponse(size, 3), 7),
    ]  # fmt: skip
    if broken:
        for place in ("base", "gaussian"):
            monkeypatch.setattr(f"privacy.events.{place}.LARGEST_DIVERGENCE", math.inf)
    failed = 0
    for kind, size in itertools.product(kinds, (1e3, 1e10, 1e14, 1e20, 1e154, 1e200, 1e300)):
        for counts in ({kind(size): 1}, {kind(size): 10**12, Gaussian(0.1): 5}):
            for epsilon_of in (fully_adaptive_epsilon, lambda made, delta: compose(made, delta).epsilon):
                try:
                    assert epsilon_of(counts, DELTA) > 700 or broken
                except (ValueError, ArithmeticError, RuntimeWarning):
                    failed += 1
    assert bool(failed) is broken


@pytest.mark.parametrize(("queries", "expected"), [(27, 0.644), (400, 2.924), (1000, 4.955)])
def test_laplace_votes_figures(queries: int, expected: float) -> None:
    assert compose({LaplaceVotes(40.0): queries}, DELTA).epsilon == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("delta", [1e-4, 1e-6])
@pytest.mark.parametrize("steps", [1, 100, 1000])
def test_label_gradients_against_the_binomial_sum(steps: int, delta: float) -> None:
    epsilon = compose({RevealedGaussian(1.0, 0.01): steps}, delta).epsilon
    terms = range(1, steps + 1)
    exact = math.fsum(binom.pmf(k, steps, 0.01) * gaussian_delta(math.sqrt(k), epsilon) for k in terms)
    assert exact <= delta <= exact * (1 + 2e-3)


def test_dp_sgd_where_gdp_is_too_low() -> None:
    """The central-limit approximation gives 3.398, and adding a record, the cheaper direction, less than half."""
    value = compose({SampledGaussian(0.6, 256 / 60_000): 2344}, DELTA).epsilon
    assert value == pytest.approx(4.948, abs=1e-3)


@pytest.mark.parametrize("order", [1.05, 1.5, 2.0, 4.5, 9.75, 15.5, 40.3, 70.3])
@pytest.mark.parametrize(("sigma", "rate"), [(1.1, 0.01), (4.0, 0.5), (0.5, 0.001)])
def test_sampled_renyi_against_quadrature_at_high_precision(sigma: float, rate: float, order: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(30):
        s, q = mpmath.mpf(sigma), mpmath.mpf(rate)

        def integrand(x: object) -> object:
            return mpmath.npdf(x, 0, s) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))) ** order

        points = [-15 * s, 0, 1, order / 2, order, order + 15 * s]
        exact = float(mpmath.log(mpmath.quad(integrand, sorted(points))) / (order - 1))
    value = float(SampledGaussian(sigma, rate).rdp([order])[0])
    # Between whole orders a line lies above the curve.
    assert exact * (1 - 1e-9) <= value and (value <= exact * (1 + 1e-6) or order != round(order))


def test_counts_too_large_for_any_grid_still_have_a_bound() -> None:
    for release in (RandomizedResponse(1.0, 10), LaplaceVotes(1.0), RandomizedResponse(0.7, 3)):
        huge, large = (compose({release: n, RandomizedResponse(1e-9, 2): 1}, DELTA).epsilon for n in (10**15, 10**9))
        assert large < huge < math.inf
        assert huge <= rdp_compose({release: 10**15, RandomizedResponse(1e-9, 2): 1}, DELTA)
