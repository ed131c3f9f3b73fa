"""Discrete Gaussian noise: the right integers, on a lattice that betrays nothing, at a cost that summation confirms."""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp
from support.closed_forms import rdp_compose
from support.seeded import Seeded

import privacy.mechanisms.discrete_gaussian as module
from privacy import Gaussian, compose
from privacy.events.gaussian import DiscreteGaussian, SampledDiscreteGaussian
from privacy.mechanisms.discrete_gaussian import FINEST, discrete_gaussian, lattice_spacing, round_to_lattice
from privacy.mechanisms.noise import NoiseSource, SystemNoise

Array = NDArray[np.float64]
DRAWS = 200_000
ORDERS = [1.3, 2.0, 2.5, 3.0, 7.0, 7.8, 16.0, 32.0]


def draw(sigma: float, *, count: int = DRAWS, seed: int = 0) -> NDArray[np.int64]:
    return np.asarray(discrete_gaussian(Seeded(seed=seed), (count,), sigma=sigma).numpy())


def mass_function(sigma: float) -> tuple[NDArray[np.int64], Array]:
    values = np.arange(-math.ceil(14 * sigma) - 1, math.ceil(14 * sigma) + 2)
    weights = np.exp(-(values**2) / (2 * sigma**2))
    return values, weights / weights.sum()


def p_value(draws: NDArray[np.int64], sigma: float) -> float:
    """Chi-square test against the exact probabilities, rare values taken together."""
    values, masses = mass_function(sigma)
    expected = masses * draws.size
    often = expected >= 10
    found = np.array([(draws == value).sum() for value in values[often]])
    observed, wanted = np.append(found, draws.size - found.sum()), np.append(expected[often], expected[~often].sum())
    if wanted[-1] < 10:
        observed = np.append(observed[:-2], observed[-2:].sum())
        wanted = np.append(wanted[:-2], wanted[-2:].sum())
    return float(stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)


# The sampler


@pytest.mark.parametrize("sigma", [0.4, 0.5, 0.99, 1.0, 2.7, 19.3])
def test_draws_have_their_mass_function_and_no_other(sigma: float) -> None:
    draws = draw(sigma)
    assert p_value(draws, sigma) > 1e-3
    for factor in (2 / 3, 3 / 2, 0.97):
        assert p_value(draws, factor * sigma) < 1e-9


@pytest.mark.parametrize("sigma", [12345.678, 2.0**40])
def test_large_scales(sigma: float) -> None:
    draws = draw(sigma).astype(np.float64) / sigma

    def fits(factor: float) -> bool:
        scaled = draws / factor
        means = abs(scaled.mean()) < 5 / math.sqrt(DRAWS), abs(scaled.var() - 1) < 5 * math.sqrt(2 / DRAWS)
        return all(means) and float(stats.kstest(scaled, "norm").pvalue) > 1e-3

    assert fits(1.0)
    assert not fits(2 / 3)
    assert not fits(3 / 2)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / math.sqrt(DRAWS)
    # The last bits are as random as the first.
    low = np.bincount(draw(sigma) & 63, minlength=64)
    assert stats.chisquare(low).pvalue > 1e-3


def test_small_scales_and_shapes() -> None:
    assert not draw(2.0**-40, count=100).any()
    for shape in ((), (1,), (3, 5), (2, 0)):
        drawn = discrete_gaussian(SystemNoise(), shape, sigma=3.0)
        assert drawn.shape == torch.Size(shape)
        assert drawn.dtype == torch.int64


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**41, 2.0**-41])
def test_scales_out_of_range_are_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match=r"sigma must .*got"):
        discrete_gaussian(Seeded(), (1,), sigma=sigma)


@pytest.mark.parametrize("sigma", [2.0**-20, 0.7, 1.0, 3.3, 1000.1, 2.0**40 - 0.5])
def test_the_margin_covers_the_error_of_float64(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: dict[str, list[float]] = {"float64": [], "float32": []}
    original = module._exp_events

    def spy(noise: NoiseSource, exponents: Array, exact: Callable[[int], Fraction]) -> NDArray[np.bool_]:
        singles = np.exp(-exponents.astype(np.float32)).astype(np.float64)
        for i in range(min(len(exponents), 100)):
            true = float(probability(exact(i)))
            errors["float64"].append(abs(math.exp(-exponents[i]) - true))
            errors["float32"].append(abs(float(singles[i]) - true))
        return original(noise, exponents, exact)

    monkeypatch.setattr(module, "_exp_events", spy)
    draw(sigma, count=500)
    assert module._MARGIN == 2.0**-40
    assert max(errors["float64"]) < 2.0**-45
    assert max(errors["float32"]) > 2.0**-40


def probability(exponent: Fraction) -> decimal.Decimal:
    with decimal.localcontext(decimal.Context(prec=120)):
        return (-decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)).exp()


class Scripted(NoiseSource):
    def __init__(self, words: Sequence[int]) -> None:
        self.left = list(words)

    def words(self, count: int) -> NDArray[np.uint64]:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)


@pytest.mark.parametrize("exponent", [Fraction(1), Fraction(1, 7), Fraction(3), Fraction(1, 2**70)])
def test_ties_are_decided_by_reading_on(exponent: Fraction) -> None:
    with decimal.localcontext(decimal.Context(prec=120)):
        digits = int(probability(exponent) * 2**192)
    head, middle, tail = digits >> 128, (digits >> 64) & (2**64 - 1), digits & (2**64 - 1)
    assert module._below_exp(Scripted([middle, tail - 9]), head, exponent)
    assert not module._below_exp(Scripted([middle, tail + 9]), head, exponent)
    # Nothing is read where the first word decides.
    assert module._below_exp(Scripted([]), head - 9, exponent)
    assert not module._below_exp(Scripted([]), min(head + 9, 2**64 - 1), Fraction(1) + exponent)


@given(st.fractions(min_value=0, max_value=200), st.sampled_from([64, 128, 192]))
@example(Fraction(0), 64)
@example(Fraction(10**30), 64)
def test_bounds_enclose_the_exponential(exponent: Fraction, bits: int) -> None:
    lower, upper = module._scaled_exp(exponent, bits)
    with decimal.localcontext(decimal.Context(prec=120)):
        assert lower <= probability(exponent) * 2**bits <= upper
    assert upper - lower <= 3


# The lattice

entries = st.one_of(st.just(0.0), st.floats(), st.floats(-2.0, 2.0))
tables = st.integers(1, 9).flatmap(
    lambda c: st.lists(st.lists(entries, min_size=c, max_size=c), min_size=1, max_size=4)
)
bounds_and_spacings = st.tuples(st.sampled_from([1e-30, 1e-3, 1.0, 7.3, 1e30]), st.integers(-2, 50)).map(
    lambda pair: (pair[0], 2.0 ** (math.floor(math.log2(pair[0])) - pair[1]))
)


def square(row: Sequence[float]) -> Fraction:
    return sum((Fraction(value) ** 2 for value in row), Fraction(0))


@given(tables, bounds_and_spacings)
@example([[0.6, 0.8]], (1.0, 0.25))
@example([[1.7e308] * 9], (7.3, 2.0**-48))
@example([[math.nan, 1.0], [math.inf, 1.0], [0.25, 5e-324]], (1.0, 2.0**-50))
def test_rounding_increases_no_norm(table: list[list[float]], lattice: tuple[float, float]) -> None:
    norm_bound, granularity = lattice
    rows = torch.tensor(table, dtype=torch.float64)
    points = round_to_lattice(rows, norm_bound=norm_bound, granularity=granularity)
    assert points.dtype == torch.int64
    released = points.to(torch.float64) * granularity
    for row, point, out in zip(table, points.tolist(), released.tolist(), strict=True):
        assert square(point) * Fraction(granularity) ** 2 == square(out) <= Fraction(norm_bound) ** 2
        if not all(map(math.isfinite, row)):
            assert not any(out)
            continue
        assert all(abs(after) <= abs(before) for after, before in zip(out, row, strict=True))
        if math.hypot(*row) < norm_bound * (1 - 2e-12):
            assert math.dist(out, row) <= granularity * math.sqrt(len(row))


def test_rounding_to_the_nearest_point_would_increase_norms() -> None:
    rows = torch.full((1, 16), 0.75, dtype=torch.float64)
    assert square(torch.round(rows)[0].tolist()) > 3**2
    assert not round_to_lattice(rows, norm_bound=3.0, granularity=1.0).any()
    # Norms are exact also where float64 rounds the bound itself to either side.
    many = torch.randn(2000, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = round_to_lattice(many, norm_bound=1.0, granularity=2.0**-52)
    assert all(square(row) <= 2**104 for row in points.tolist())
    plain = torch.trunc(many / many.norm(dim=1, keepdim=True) * 2.0**52)
    assert any(square(row) > 2**104 for row in plain.tolist())


def test_lattice_arguments_without_meaning_are_refused() -> None:
    good: dict[str, Any] = {"norm_bound": 1.0, "granularity": 0.25}
    for bad, message in (
        ({"granularity": 0.1}, "granularity must be a power of two"),
        ({"granularity": 2.0**-600}, "granularity must be a power of two"),
        ({"granularity": 0.0}, "granularity must be a power of two"),
        ({"norm_bound": math.inf}, "norm_bound must be at most"),
        ({"norm_bound": 2.0**51}, r"norm_bound must be at most 2\*\*52 times granularity"),
    ):
        with pytest.raises(ValueError, match=message):
            round_to_lattice(torch.zeros(2, 3), **{**good, **bad})
    for table in (torch.zeros(3), torch.zeros(2, 0), torch.zeros(2, 3, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"rows must be floating point of shape \(B, c\)"):
            round_to_lattice(table, **good)


# What it costs


def grid(sigma: float, shift: Sequence[int], reach: float) -> tuple[Array, Array]:
    """log probability of every point near 0, and the log likelihood ratio of noise shifted by `shift` to noise."""
    size = math.ceil(12 * sigma + reach * max(map(abs, shift)))
    axes = np.meshgrid(*(np.arange(-size, size + 1.0) for _ in shift))
    one = np.arange(-size, size + 1.0)
    norm = len(shift) * logsumexp(-(one**2) / (2 * sigma**2))
    log_mass = -sum(axis**2 for axis in axes) / (2 * sigma**2) - norm
    log_ratio = sum(2 * k * axis - k * k for k, axis in zip(shift, axes, strict=True)) / (2 * sigma**2)
    return np.ravel(log_mass), np.ravel(log_ratio)


def length(shift: Sequence[int]) -> float:
    return math.sqrt(sum(k * k for k in shift))


@pytest.mark.parametrize(("sigma", "shift"), list(itertools.product([0.4, 1.0, 6.5], [(1,), (2,), (1, -2)])))
def test_renyi_divergences_by_summation(sigma: float, shift: tuple[int, ...]) -> None:
    claimed = DiscreteGaussian(length(shift) / sigma).rdp(ORDERS)
    log_mass, log_ratio = grid(sigma, shift, max(ORDERS))
    exact = np.array([logsumexp(log_mass + order * log_ratio) / (order - 1) for order in ORDERS])
    assert np.all(exact <= claimed * (1 + 1e-12))
    whole = np.equal(np.round(ORDERS), ORDERS)
    assert np.allclose(exact[whole], claimed[whole], rtol=1e-9)
    assert np.all(DiscreteGaussian(0.9 * length(shift) / sigma).rdp(ORDERS)[whole] < exact[whole])


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 1.0])
@pytest.mark.parametrize(("sigma", "shift"), [(0.5, (1,)), (1.0, (1,)), (2.0, (3,)), (9.0, (4,)), (1.5, (1, -1))])
def test_sampled_renyi_divergences_by_summation(sigma: float, shift: tuple[int, ...], rate: float) -> None:
    release = SampledDiscreteGaussian(sigma / length(shift), rate)
    claimed = release.rdp(ORDERS)
    log_mass, log_ratio = grid(sigma, shift, max(ORDERS))
    log_keep = math.log1p(-rate) if rate < 1 else -math.inf
    mixed = np.logaddexp(log_keep, math.log(rate) + log_ratio)

    def divergence(power: float, order: float) -> float:
        # Of 1 + E[r^p - 1 - p (r - 1)], since E[r] = 1: no digits are lost where the moment is close to 1.
        with np.errstate(over="ignore", invalid="ignore"):
            excess = np.exp(log_mass) * (np.expm1(power * mixed) - power * np.expm1(mixed))
        if not np.all(np.isfinite(excess)) or excess.sum() > 1e3:
            return float(logsumexp(log_mass + power * mixed)) / (order - 1)
        return math.log1p(float(excess.sum())) / (order - 1)

    removing = np.array([divergence(order, order) for order in ORDERS])
    adding = np.array([divergence(1 - order, order) for order in ORDERS])
    assert np.all(removing > 0)
    assert np.all(removing <= claimed * (1 + 1e-9))
    assert np.all(adding <= removing * (1 + 1e-9))
    whole = np.equal(np.round(ORDERS), ORDERS)
    assert np.allclose(removing[whole], claimed[whole], rtol=1e-6)
    # Negative controls: half of the rate, and noise of 3/2 the scale.
    for broken in (
        SampledDiscreteGaussian(release.noise_multiplier, rate / 2),
        SampledDiscreteGaussian(1.5 * release.noise_multiplier, rate),
    ):
        assert np.all(broken.rdp(ORDERS)[whole] < removing[whole])


def test_a_line_below_the_curve_would_be_noticed() -> None:
    """Between whole orders: the lower of the two ends, which is no bound, lies below what summation gives."""
    log_mass, log_ratio = grid(1.0, (1,), 4.0)
    moment = float(logsumexp(log_mass + 2.9 * np.logaddexp(math.log(0.7), math.log(0.3) + log_ratio)))
    low, between = SampledDiscreteGaussian(1.0, 0.3).rdp([2.0, 2.9])
    assert low * (2.0 - 1.0) < moment <= between * 1.9


def test_composition_takes_the_renyi_bound() -> None:
    reading = compose({DiscreteGaussian(0.2): 100}, 1e-5)
    exact = compose({Gaussian(0.2): 100}, 1e-5).epsilon
    assert reading.method == "rdp"
    assert reading.epsilon == pytest.approx(rdp_compose({Gaussian(0.2): 100}, 1e-5), rel=1e-9)
    assert exact < reading.epsilon < 1.1 * exact


@pytest.mark.parametrize("norm_bound", [1.0, 1.99])
def test_the_finest_lattice_that_settings_allow_can_be_rounded_to(norm_bound: float) -> None:
    spacing = lattice_spacing(FINEST, norm_bound=norm_bound)
    assert round_to_lattice(torch.tensor([[0.5]]), norm_bound=norm_bound, granularity=spacing).item() == 0.5 / spacing
    with pytest.raises(ValueError, match="norm_bound must be at most"):
        round_to_lattice(torch.tensor([[0.5]]), norm_bound=norm_bound, granularity=spacing / 8)
