"""Privacy-loss distributions whose rounding, truncation and floating-point errors all raise ε, never lower it.

For a dominating pair (P, Q) the privacy loss is L = log(P/Q)(x), x ~ P, and

    δ(ε) = P(L = inf) + E[(1 - exp(ε - L))_+]                                     (the hockey stick),

and composition convolves the distributions of L (Sommer, Meiser and Mohammadi 2019; Zhu, Dong and Wang 2022 for
adaptive mechanisms). Three choices make the numbers here safe and tight:

* **Rounding.** A bin's mass is split between its two ends so that both P(bin) and Q(bin) are kept. The discrete hockey
  stick then meets the true one at every grid point and lies above it in between, because the true one is convex in
  exp(ε) (Doroshenko et al. 2022, "Connect the dots"). Losses above the grid count as infinite.
* **Tilting.** The Fourier transform has an absolute error of 1e-16, useless for δ = 1e-15. So the distributions are
  first multiplied by exp(theta L) and normalised, where theta is the best Renyi order minus one. The losses that
  determine ε then have most of the mass, and a small relative error.
* **Truncation.** The transform's window is chosen by Chernoff bounds on the tilted sum. Mass that wraps around only
  adds to what is inside; mass above the window is added back in full.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from privacy.checks import check_count, check_delta, check_number

Array: TypeAlias = NDArray[np.float64]

#: Mass above a single distribution's grid, as a logarithm; it becomes an infinite loss, so it must be negligible for
#: any delta even after a million compositions.
_LOG_TAIL = math.log(1e-30)
#: Mass of the tilted sum outside the transform's window, on either side.
_LOG_WINDOW_TAIL = math.log(1e-14)
#: Transforms are exact to about 1e-16 times the number of compositions; this is the margin kept below delta.
_SAFETY = 1e-9
_ROUNDING = 4e-15
#: Relative rounding of losses. Any that are further from a point of the grid are split, since moving them may lower ε.
_GRID = 1e-15
#: Longest transform; for sums that need a longer one, only the Renyi bound is used.
_MAX_POINTS = 1 << 24


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Masses of a privacy loss on the grid `interval * (offset + i)`, and the mass of an infinite loss.

    Attributes:
        interval: grid spacing, natural-log units.
        offset: index of the first point; loss 0 has index 0.
        masses: probabilities under P, shape (points,).
        infinite: probability of an infinite loss.
    """

    interval: float
    offset: int
    masses: Array
    infinite: float = 0.0

    def __post_init__(self) -> None:
        check_number("interval", self.interval, above=0)
        check_number("infinite", self.infinite, least=0, most=1)
        if self.masses.ndim != 1 or self.masses.size == 0 or not np.all(self.masses >= 0.0):
            raise ValueError("masses must be a non-empty vector of probabilities")
        total = float(self.masses.sum()) + self.infinite
        if not 1.0 - 1e-9 <= total <= 1.0 + 1e-9:
            raise ValueError(f"masses must sum to 1 together with infinite, got {total}")

    @property
    def losses(self) -> Array:
        """Grid points, shape (points,)."""
        return self.interval * (self.offset + np.arange(self.masses.size, dtype=np.float64))

    @functools.cached_property
    def _support(self) -> tuple[Array, Array]:
        """Losses of positive mass, and the logarithms of their masses."""
        positive = self.masses > 0.0
        return self.losses[positive], np.log(self.masses[positive])

    def log_mgf(self, theta: float) -> float:
        """log E[exp(theta L); L finite]."""
        losses, log_masses = self._support
        exponent = theta * losses + log_masses
        peak = float(exponent.max())
        return peak + math.log(float(np.exp(exponent - peak).sum()))

    def tilted(self, theta: float) -> Array:
        """Masses times exp(theta L), normalised, shape (points,)."""
        losses, log_masses = self._support
        exponent = theta * losses + log_masses
        weights = np.exp(exponent - exponent.max())
        values = np.zeros_like(self.masses)
        values[self.masses > 0.0] = weights / weights.sum()
        return values


def split_bins(interval: float, offset: int, log_p: Array, log_q: Array, *, top: float) -> LossDistribution:
    """Makes a loss from bins that are rounded to their ends (see `_add_split`), with mass `top` at infinity."""
    masses = np.zeros(log_p.size + 1)
    _add_split(masses, interval, offset, log_p, log_q)
    return LossDistribution(interval, offset, masses, min(1.0, top))


def _add_split(masses: Array, interval: float, offset: int, log_p: Array, log_q: Array) -> None:
    """Round bins to their ends, keeping P and Q masses, and add them to `masses`; see the module docstring.

    The bins are ((offset + i) h, (offset + i + 1) h]; `log_p` and `log_q` are their log masses, shape (bins,). The
    first also holds all mass below it; its Q mass is ignored, and its P mass moves to its upper end.
    """
    upper = interval * (offset + 1.0 + np.arange(log_p.size))
    p = np.exp(log_p)
    with np.errstate(invalid="ignore", over="ignore"):
        # share = (Q e^u / P - 1)/(e^h - 1) is rounded down; within the rounding error, the slack, mass is rounded up.
        exponent = upper + log_q - log_p
        slack = 4e-16 * (1.0 + np.abs(upper) + np.abs(log_p) + np.abs(np.where(np.isfinite(log_q), log_q, 0.0)))
        share = np.expm1(exponent - slack) / math.expm1(interval) if interval < 700.0 else np.zeros_like(p)
    share = np.clip(np.where(np.isfinite(share), share, 0.0), 0.0, 1.0)
    share[0] = 0.0
    masses[: p.size] += share * p
    masses[1 : p.size + 1] += (1.0 - share) * p


def atoms(interval: float, losses: Sequence[float], masses: Sequence[float]) -> LossDistribution:
    """Makes a discrete loss; points off the grid are split between their two neighbours, points on it stay exact."""
    low, values = _place(interval, losses, masses)
    return LossDistribution(interval, low, values)


def _place(interval: float, losses: Sequence[float], masses: Sequence[float]) -> tuple[int, Array]:
    index = [loss / interval for loss in losses]
    index = [float(round(i)) if abs(i - round(i)) <= _GRID * max(1.0, abs(i)) else i for i in index]
    low = math.floor(min(index))
    values = np.zeros(math.ceil(max(index)) - low + 1)
    for position, mass in zip(index, masses, strict=True):
        below = math.floor(position)
        rest = position - below
        # expm1((1 - rest) h)/expm1(h), which overflows beyond h = 709.
        share = math.exp(-rest * interval) * math.expm1((rest - 1.0) * interval) / math.expm1(-interval)
        values[below - low] += share * mass
        if rest > 0.0:
            values[below - low + 1] += (1.0 - share) * mass
    return low, values


def gaussian_loss(mu: float, interval: float, *, rate: float = 1.0) -> LossDistribution:
    """N(μ, 1) against N(0, 1), with probability `rate`, and otherwise a loss of 0.

    The former is N(μ^2/2, μ^2) under P and N(-μ^2/2, μ^2) under Q.
    """
    z = -float(scipy.special.ndtri_exp(_LOG_TAIL))
    mean = 0.5 * mu * mu
    low = min(-1, math.floor((mean - z * mu) / interval))
    high = max(1, math.ceil((mean + z * mu) / interval))
    edges = interval * np.arange(low, high + 1, dtype=np.float64)
    masses = np.zeros(edges.size)
    log_p = _log_between((edges - mean) / mu)
    log_p[0] = scipy.special.log_ndtr((edges[1] - mean) / mu)
    _add_split(masses, interval, low, log_p, _log_between((edges + mean) / mu))
    masses *= rate
    masses[-low] += 1.0 - rate
    return LossDistribution(interval, low, masses, rate * float(scipy.special.ndtr((mean - edges[-1]) / mu)))


def laplace_loss(shift: float, interval: float) -> LossDistribution:
    """Lap(0, 1) against Lap(`shift`, 1): atoms at both ends +-shift, a density in between."""
    low, high = math.floor(-shift / interval) - 1, math.ceil(shift / interval)
    edges = np.clip(interval * np.arange(low, high + 1, dtype=np.float64), -shift, shift)
    masses = np.zeros(edges.size)
    # P(L <= t) = exp((t - shift)/2)/2 for t in [-shift, shift), by L = shift - 2x for x in (0, shift).
    with np.errstate(divide="ignore"):
        width = 0.5 * np.diff(edges)
        half_width = width + np.log(-0.5 * np.expm1(-width))
    _add_split(masses, interval, low, 0.5 * (edges[:-1] - shift) + half_width, 0.5 * (-edges[1:] - shift) + half_width)
    first, ends = _place(interval, [shift, -shift], [0.5, 0.5 * math.exp(-shift)])
    masses[first - low : first - low + ends.size] += ends
    return LossDistribution(interval, low, masses)


def convolve_pair(loss: LossDistribution) -> LossDistribution:
    """Loss of two independent copies, by direct products, which are exact down to the smallest masses."""
    infinite = 2.0 * loss.infinite - loss.infinite * loss.infinite
    return LossDistribution(loss.interval, 2 * loss.offset, np.convolve(loss.masses, loss.masses), infinite)


def sampled_gaussian_losses(
    noise_multiplier: float, sample_rate: float, interval: float
) -> tuple[LossDistribution, LossDistribution]:
    """Poisson-subsampled Gaussian, removing and adding the record.

    Removing: P = (1-q) N(0, s^2) + q N(1, s^2) against Q = N(0, s^2), whose loss log(1 - q + q exp((2x-1)/(2 s^2)))
        grows with x.
    Adding swaps the two. Together they dominate (Zhu, Dong and Wang 2022).
    """
    s, q = noise_multiplier, sample_rate
    z = -float(scipy.special.ndtri_exp(_LOG_TAIL))

    def loss(x: float) -> float:
        exponent = (2.0 * x - 1.0) / (2.0 * s * s)
        return exponent + math.log(q) if exponent > 700.0 else math.log1p(q * math.expm1(exponent))

    low = math.floor(loss(-z * s) / interval) - 1
    high = math.ceil(loss(1.0 + z * s) / interval)
    edges = interval * np.arange(low, high + 1, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(edges > 700.0, edges - math.log(q), np.log1p(np.maximum(np.expm1(edges) / q, -1.0)))
    x = s * s * ratio + 0.5
    log_keep, log_take = math.log1p(-q), math.log(q)

    def mixed(null: Array, shifted: Array) -> Array:
        return np.logaddexp(log_keep + null, log_take + shifted)

    null, shifted = _log_between(x / s), _log_between((x - 1.0) / s)
    remove_p, remove_q = mixed(null, shifted), null
    below_null, below_shifted = scipy.special.log_ndtr(x[1:2] / s), scipy.special.log_ndtr((x[1:2] - 1.0) / s)
    above_null, above_shifted = scipy.special.log_ndtr(-x[-1:] / s), scipy.special.log_ndtr((1.0 - x[-1:]) / s)
    start = np.concatenate([mixed(below_null, below_shifted), remove_p[1:]])
    above = mixed(above_null, above_shifted)
    remove = split_bins(interval, low, start, remove_q, top=float(np.exp(above[0])))
    # Adding: L' = -L, so the bins reverse, and what was above the grid is one more bin below it.
    add_p = np.concatenate([above_null, null[::-1]])
    add_q = np.concatenate([above, mixed(null, shifted)[::-1]])
    add = split_bins(interval, -high - 1, add_p, add_q, top=float(scipy.special.ndtr(x[0] / s)))
    return remove, add


def _log_between(edges: Array) -> Array:
    """log of the standard normal mass between neighbouring edges, from the tail that loses no digits."""
    left, right = edges[:-1], edges[1:]
    flip = left > 0.0
    inner = scipy.special.log_ndtr(np.where(flip, -left, right))
    outer = scipy.special.log_ndtr(np.where(flip, -right, left))
    with np.errstate(divide="ignore", invalid="ignore"):
        mass: Array = inner + np.log(-np.expm1(outer - inner))
    return np.where(np.isnan(mass), -np.inf, mass)


@dataclass(frozen=True, eq=False)
class _Tilted:
    """The tilted sum of losses on a window, ready for hockey-stick queries."""

    losses: Array
    masses: Array
    theta: float
    log_scale: float
    above: float

    def log_delta(self, epsilon: float) -> float:
        """log of δ(ε), finite losses only."""
        first = int(np.searchsorted(self.losses, epsilon, side="right"))
        gap = self.losses[first:] - epsilon
        if self.theta > 0.0 and gap.size:
            gap = gap[: int(np.searchsorted(gap, gap[0] + 60.0 / self.theta, side="right"))]
        weights = np.exp(-self.theta * gap) * -np.expm1(-gap)
        total = float(self.masses[first : first + gap.size] @ weights) + self.above
        # Weights beyond 60/theta are below exp(-60) of the first one and are counted as mass 1 with that weight.
        if first + gap.size < self.losses.size and gap.size:
            total += math.exp(-self.theta * float(gap[0]) - 60.0)
        if total <= 0.0:
            return -math.inf
        return math.log(total) + self.log_scale - self.theta * epsilon


def compose_epsilon(parts: Sequence[tuple[LossDistribution, int]], delta: float) -> float:
    """Upper bound on ε at `delta` of the composition of all parts, each repeated by its count.

    Raises:
        ValueError: The parts do not share one grid, a count is negative, or `delta` is outside (0, 1).

    >>> answer = atoms(1.0, [1.0, 0.0, -1.0], [0.5, 0.5 - 0.5 / math.e, 0.5 / math.e])
    >>> compose_epsilon([(answer, 100)], 1e-5) < 100.0
    True
    """
    delta = check_delta(delta)
    kept = [(part, int(count)) for part, count in parts if check_count("count", count)]
    if not kept:
        return 0.0
    if len({part.interval for part, _ in kept}) > 1:
        raise ValueError("parts must share one grid interval")
    logs = [count * (math.log1p(-part.infinite) if part.infinite < 1.0 else -math.inf) for part, count in kept]
    infinite = -math.expm1(math.fsum(logs))
    if infinite >= delta:
        return math.inf
    target = math.log(delta - infinite) - _safety(kept)

    def renyi(theta: float) -> float:
        return (_log_mgf(kept, theta) - target - math.log1p(theta)) / theta + math.log(theta / (1.0 + theta))

    theta = _minimise(renyi, kept)
    tilted = _tilt(kept, theta)
    if tilted is None:
        return math.inf
    if tilted.log_delta(0.0) <= target:
        return 0.0
    high = float(tilted.losses[-1])
    low = max(0.0, float(tilted.losses[0]) - 1.0)
    if tilted.above > 0.0:
        while tilted.log_delta(high) > target:
            high += max(1.0, abs(high))
    if tilted.log_delta(low) <= target:
        low = 0.0

    def excess(epsilon: float) -> float:
        return max(tilted.log_delta(epsilon) - target, -1e6)

    root = float(scipy.optimize.brentq(excess, low, high, xtol=1e-15 * min(1.0, high), rtol=1e-14))
    for bump in (0.0, 1e-13, 1e-12, 1e-11):
        epsilon = root * (1.0 + bump)
        if excess(epsilon) <= 0.0:
            # Just below the largest loss, the rounding of losses decides how much they exceed epsilon.
            decides = excess(epsilon * (1.0 - _GRID)) > 0.5 * _safety(kept)
            return epsilon * (1.0 + 2.0 * _GRID) if decides else epsilon
    return high * (1.0 + 2.0 * _GRID)  # where nothing is above it, or the tilted sum allows it


def _safety(parts: Sequence[tuple[LossDistribution, int]]) -> float:
    """Share of δ reserved for rounding: a spectrum with a relative error of 1e-16 is raised to the count."""
    return max(_SAFETY, _ROUNDING * math.fsum(count for _, count in parts))


def _log_mgf(parts: Sequence[tuple[LossDistribution, int]], theta: float) -> float:
    return math.fsum(count * part.log_mgf(theta) for part, count in parts)


def _minimise(objective: Callable[[float], float], parts: Sequence[tuple[LossDistribution, int]]) -> float:
    """A good tilt: three nested grids. Any positive value is valid, the best one is merely the most accurate."""
    reach = max(part.interval * max(abs(part.offset), abs(part.offset + part.masses.size)) for part, _ in parts)
    low, high = math.log(1e-4), math.log(max(1e-3, 700.0 / reach, 700.0))
    high = min(high, math.log(600.0 / min(part.interval for part, _ in parts)))
    if high <= low:
        low = high - 5.0
    best = high
    for _ in range(3):
        grid = np.linspace(low, high, 13)
        values = [objective(math.exp(t)) for t in grid]
        index = int(np.argmin(values))
        best = float(grid[index])
        low, high = float(grid[max(index - 1, 0)]), float(grid[min(index + 1, 12)])
    return math.exp(best)


def _tilt(parts: Sequence[tuple[LossDistribution, int]], theta: float) -> _Tilted | None:
    """Computes the tilted sum; None if its window would not fit into memory."""
    interval = parts[0][0].interval
    tilted: list[tuple[Array, int, int]] = []
    mean = variance = 0.0
    for part, count in parts:
        weights = part.tilted(theta)
        index = np.arange(weights.size)
        centre = float(weights @ index)
        mean += count * (part.offset + centre)
        variance += count * float(weights @ (index - centre) ** 2)
        tilted.append((weights, round(centre), count))
    base = _log_mgf(parts, theta)
    low_index = sum(count * part.offset for part, count in parts)
    high_index = sum(count * (part.offset + part.masses.size - 1) for part, count in parts)
    std = interval * math.sqrt(variance)
    if high_index - low_index >= 4096:
        scales = np.geomspace(0.05, 50.0, 25) / max(std, interval)
        upper = min((_log_mgf(parts, theta + t) - base - _LOG_WINDOW_TAIL) / t for t in scales)
        lower = max(-(_log_mgf(parts, theta - t) - base - _LOG_WINDOW_TAIL) / t for t in scales)
        low_index = max(low_index, math.floor(lower / interval))
        high_index = min(high_index, math.ceil(upper / interval))
        above = math.exp(_LOG_WINDOW_TAIL)
    else:
        above = 0.0
    if high_index - low_index >= _MAX_POINTS:
        return None
    size = 1 << max(1, math.ceil(math.log2(high_index - low_index + 1)))
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    origin = 0
    for (weights, centre, count), (part, _) in zip(tilted, parts, strict=True):
        # Centred on the mean, so that phases, which are raised to a large power, stay small.
        wrapped = np.bincount((np.arange(weights.size) - centre) % size, weights=weights, minlength=size)
        spectrum *= np.fft.rfft(wrapped) ** count
        origin += count * (part.offset + centre)
    summed = np.maximum(np.fft.irfft(spectrum, size), 0.0)
    indices = low_index + np.arange(size)
    masses = summed[(indices - origin) % size]
    losses: Array = interval * indices.astype(np.float64)
    return _Tilted(losses, masses, theta, base, above)
