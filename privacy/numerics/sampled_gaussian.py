"""Renyi divergence of the Poisson-sampled Gaussian mechanism (Mironov, Talwar and Zhang 2019, Section 3.3)."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

_MAX_SAMPLED_ORDER = 4096


_MAX_QUADRATURE_ORDER = 64


_MAX_QUADRATURE_REACH = 2e4


def sampled_gaussian_rdp(
    noise_multiplier: float, sample_rate: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """RDP of the sampled Gaussian at any orders; inf above 4096.

    log A(l) = (l - 1) rdp(l) is convex in l. So what lies between two orders where it is known is bounded by the
    straight line, and fractional orders below 64 are integrated directly, where the line would be slack.
    """
    flat = orders.ravel()
    values = np.full(flat.shape, np.inf)
    for i, order in enumerate(flat.tolist()):
        if order > _MAX_SAMPLED_ORDER:
            continue
        below = math.floor(order)
        if order == below or order > _MAX_QUADRATURE_ORDER or order > _MAX_QUADRATURE_REACH * noise_multiplier:
            rest = order - below
            log_moment = (1.0 - rest) * _sampled_log_moment(noise_multiplier, sample_rate, below)
            if rest:
                log_moment += rest * _sampled_log_moment(noise_multiplier, sample_rate, below + 1)
        else:
            log_moment = _sampled_log_moment_integral(noise_multiplier, sample_rate, order)
        values[i] = max(0.0, log_moment) / (order - 1.0)
    return values.reshape(orders.shape)


@functools.lru_cache(maxsize=65536)
def _sampled_log_moment(noise_multiplier: float, sample_rate: float, order: int) -> float:
    """log sum_i binom(l, i) (1-q)^(l-i) q^i exp((i^2 - i)/(2 s^2)), as 1 plus what exceeds it."""
    i = np.arange(order + 1, dtype=np.float64)
    log_binomial = gammaln(order + 1.0) - gammaln(i + 1.0) - gammaln(order - i + 1.0)
    weight = log_binomial + i * math.log(sample_rate) + (order - i) * math.log1p(-sample_rate)
    exponent = (i * i - i) / (2.0 * noise_multiplier**2)
    # The weights sum to 1, so the moment is 1 + sum weight (e^x - 1): no digits lost where it is close to 1.
    with np.errstate(over="ignore", divide="ignore"):
        excess = weight + np.where(exponent > 30.0, exponent, np.log(np.expm1(np.minimum(exponent, 30.0))))
    total = float(np.logaddexp.reduce(excess))
    # gammaln is good to about 1e-15 of its value.
    return float(np.logaddexp(0.0, total)) * (1.0 + 1e-11) if total > -700.0 else 0.0


@functools.lru_cache(maxsize=65536)
def _sampled_log_moment_integral(noise_multiplier: float, sample_rate: float, order: float) -> float:
    """log E[(1 - q + q e^{(2x-1)/(2 s^2)})^l], x ~ N(0, s^2), by the trapezoid rule (geometric convergence)."""
    s = noise_multiplier
    points = np.linspace(-14.0, order / s + 14.0, int(20.0 * (order / s + 28.0)) + 1)
    exponent = points / s - 0.5 / (s * s)
    ratio = np.logaddexp(math.log1p(-sample_rate), math.log(sample_rate) + exponent)
    near = np.abs(exponent) < 1.0
    ratio[near] = np.log1p(sample_rate * np.expm1(exponent[near]))
    # E[x^l] = 1 + E[x^l - 1 - l (x - 1)], whose integrand is non-negative, since E[x] = 1.
    step = math.log(points[1] - points[0]) - 0.5 * math.log(2.0 * math.pi)
    log_density = step - 0.5 * points * points
    power = order * ratio
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bracket = np.log(np.maximum(np.expm1(power) - order * np.expm1(ratio), 0.0))
    log_terms = log_density + np.where(power > 100.0, power, bracket)
    total = float(np.logaddexp.reduce(log_terms))
    return float(np.logaddexp(0.0, total)) * (1.0 + 1e-9) if total > -700.0 else 0.0
