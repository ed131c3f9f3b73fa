"""Gaussian noise on the integers, and releases on a lattice that carry nothing in their floating-point low bits.

The floating-point numbers that a Gaussian in float64 can produce depend on what it is added to, so a single output may
reveal the input (Mironov 2012). Here private rows are rounded to a lattice, noise is drawn exactly from the discrete
Gaussian, and both are added as integers: every lattice point is possible for every input, with the probability that the
accounting assumes. Source: Canonne, Kamath and Steinke 2020 (CKS20).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.mechanisms.bounding import clip_per_sample, zero_non_finite_samples
from privacy.mechanisms.noise import NoiseSource, uniform_integers

_SIGMAS = (2.0**-40, 2.0**40)
# float64 decides events whose probability is further than this from the uniform draw; its own error stays below 2^-45.
_MARGIN = 2.0**-40
# Number of proposals made at once: few enough for the processor's cache.
_BATCH = 1 << 16
# Integers up to here, and their sum with noise, are exact in float64 and far from the end of int64.
_LARGEST = 2.0**52
#: The finest lattice in units of C: float64 resolves no more than 2**52 points on either side.
FINEST = 1e-15
# Beyond these exponents x / granularity might leave the normal numbers, where a power of two divides exactly.
_EXPONENTS = 512


def discrete_gaussian(noise: NoiseSource, shape: Sequence[int], *, sigma: float) -> torch.Tensor:
    """Integers x with probability proportional to exp(-x² / (2 sigma²)), N_Z(0, sigma²): int64, on the CPU.

    CKS20 Algorithm 3 with both of its rejections in one. |x| = u + t v with t = floor(σ) + 1, u uniform below t and v
    geometric with ratio 1/e is proposed with a random sign, and kept with probability exp(-g),

        g = (|x| - sigma²/t)² / (2 sigma²) + u/t ;

    a negative zero is dropped, since zero would count twice.

    Exact for uniform words, taking σ as the rational number that its float64 stands for: every draw has a
    total-variation error of 0. Events of probability p compare a uniform real number, whose bits are read on demand,
    with p. float64 decides if they are further apart than 2^-40, more than 2^5 times its error; the others, one in
    2^39, are decided in multiple precision. The time of a draw depends only on the noise.

    Args:
        noise: Where the words come from.
        shape: Shape of the result.
        sigma: From 2**-40 to 2**40. The standard deviation is at most σ, and from σ = 1 on within 1e-6 of it.

    Raises:
        ValueError: `sigma` is out of range.
    """
    if not _SIGMAS[0] <= sigma <= _SIGMAS[1]:
        raise ValueError(f"sigma must be from 2**-40 to 2**40 lattice points, got {sigma}")
    draws = np.empty(math.prod(shape), dtype=np.int64)
    filled = 0
    while filled < draws.size:
        missing = draws.size - filled
        accepted = _propose(noise, min(_BATCH, 3 * missing + 64), sigma)[:missing]
        draws[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return torch.from_numpy(draws).reshape(tuple(shape))


def lattice_spacing(granularity: float, *, norm_bound: float) -> float:
    """Largest power of two that is at most `granularity` times C = `norm_bound`: a spacing for `round_to_lattice`.

    >>> lattice_spacing(1e-3, norm_bound=1.0) == 2.0**-10
    True
    """
    return float(2.0 ** math.floor(math.log2(granularity * norm_bound)))


def round_to_lattice(rows: torch.Tensor, *, norm_bound: float, granularity: float) -> torch.Tensor:
    """Rounds rows (B, c) towards zero to int64 multiples of `granularity`: no entry grows, so no norm does either.

    Whatever the rows hold, the exact L2 norm of `granularity` times a result is at most `norm_bound`: a row with a NaN
    or an infinity counts as zeros, and one longer than the bound less a share of 1e-12 + c 2^-51 is scaled down first.
    The others are only rounded: each entry loses less than `granularity`. Rows do not affect each other.

    Args:
        rows: Shape (B, c), floating point.
        norm_bound: C, at most 2**52 times `granularity`.
        granularity: Spacing of the lattice, a power of two: only then are its points and the division exact in float64.

    Raises:
        ValueError: `rows` is not a table of floating-point numbers, or `norm_bound` or `granularity` is out of range.

    >>> round_to_lattice(torch.tensor([[0.8, -0.3]]), norm_bound=1.0, granularity=0.25)
    tensor([[ 3, -1]])
    """
    if rows.ndim != 2 or rows.shape[1] == 0 or not rows.is_floating_point():
        raise ValueError(f"rows must be floating point of shape (B, c), got {rows.dtype} {tuple(rows.shape)}")
    fraction, exponent = math.frexp(granularity)
    if fraction != 0.5 or abs(exponent) > _EXPONENTS:
        raise ValueError(f"granularity must be a power of two from 2**-512 to 2**511, got {granularity}")
    if not 0 < norm_bound <= _LARGEST * granularity:
        raise ValueError(f"norm_bound must be at most 2**52 times granularity = {granularity}, got {norm_bound}")
    # The relative error of the norm that clip_per_sample measures is up to 2^-53 per column.
    limit = norm_bound * (1.0 - (rows.shape[1] + 8) * 2.0**-52)
    clipped = clip_per_sample(zero_non_finite_samples(rows), norm_bound=limit)
    return torch.trunc(clipped * (1.0 / granularity)).to(torch.int64)


def _propose(noise: NoiseSource, count: int, sigma: float) -> NDArray[np.int64]:
    """Makes `count` proposals and returns those that are kept, in order."""
    period = int(sigma) + 1
    # One uniform number below 2t is both u and the sign.
    both = uniform_integers(noise, torch.full((count,), 2 * period)).numpy()
    minus, rest = (both & 1).astype(np.bool_), both >> 1
    size = rest + period * _geometric(noise, count)
    distance = size / sigma - sigma / period

    def exponent(i: int) -> Fraction:
        exact = Fraction(sigma)
        return (int(size[i]) / exact - exact / period) ** 2 / 2 + Fraction(int(rest[i]), period)

    accepted = _exp_events(noise, 0.5 * distance * distance + rest / period, exponent)
    accepted &= ~(minus & (size == 0))
    result: NDArray[np.int64] = np.where(minus, -size, size)[accepted]
    return result


def _geometric(noise: NoiseSource, count: int) -> NDArray[np.int64]:
    """Numbers of events of probability 1/e in a row, shape (count,)."""
    totals = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while going.size:
        going = going[_exp_events(noise, np.ones(going.size), lambda _: Fraction(1))]
        totals[going] += 1
    return totals


def _exp_events(
    noise: NoiseSource, exponents: NDArray[np.float64], exact: Callable[[int], Fraction]
) -> NDArray[np.bool_]:
    """Events of probability exp(-exact(i)), shape (events,); `exponents` are the float64 versions of `exact`."""
    words = noise.words(exponents.size)
    gap = np.exp(-exponents) - words.astype(np.float64) * 2.0**-64
    happened: NDArray[np.bool_] = gap > 0.0
    for i in np.flatnonzero(np.abs(gap) <= _MARGIN).tolist():
        happened[i] = _below_exp(noise, int(words[i]), exact(i))
    return happened


def _below_exp(noise: NoiseSource, word: int, exponent: Fraction) -> bool:
    """Whether the uniform real number whose first 64 bits are `word` lies below exp(-exponent).

    Another 64 bits are read as long as both answers are possible.
    """
    bits = 64
    while True:
        lower, upper = _scaled_exp(exponent, bits)
        if word + 1 <= lower:
            return True
        if word >= upper:
            return False
        word = (word << 64) | int(noise.words(1)[0])
        bits += 64


def _scaled_exp(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Integers that enclose 2^bits exp(-exponent), at most 3 apart."""
    if exponent > bits:
        return 0, 1
    if exponent == 0:
        return 1 << bits, 1 << bits
    # 2^bits has at most bits/3 + 1 digits; 39 more leave an error below 1e-30, exp being correctly rounded.
    with decimal.localcontext(decimal.Context(prec=bits // 3 + 40)):
        value = (-decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)).exp()
        whole = int(value * decimal.Decimal(1 << bits))
    return max(0, whole - 1), whole + 2
