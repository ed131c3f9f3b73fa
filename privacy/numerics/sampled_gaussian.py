"""Renyi divergence of the Poisson-sampled Gaussian mechanism (Mironov, Talwar and Zhang 2019, Section 3.3)."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy
from numpy.typing import NDArray

_MAX_SAMPLED_ORDER = 4096


def sampled_gaussian_rdp(
    noise_multiplier: float, sample_rate: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """RDP of the sampled Gaussian at any orders; exact at whole orders, inf above 4096.

    log A(l) = (l - 1) rdp(l) is convex in l, so linear interpolation bounds it between whole orders.
    """
    flat = orders.ravel()
    values = np.full(flat.shape, np.inf)
    for i, order in enumerate(flat.tolist()):
        if order > _MAX_SAMPLED_ORDER:
            continue
        below = math.floor(order)
        rest = order - below
        log_moment = (1.0 - rest) * _sampled_log_moment(noise_multiplier, sample_rate, below)
        if rest:
            log_moment += rest * _sampled_log_moment(noise_multiplier, sample_rate, below + 1)
        values[i] = max(0.0, log_moment) / (order - 1.0)
    return values.reshape(orders.shape)


@functools.lru_cache(maxsize=65536)
def _sampled_log_moment(noise_multiplier: float, sample_rate: float, order: int) -> float:
    """log sum_i binom(l, i) (1-q)^(l-i) q^i exp((i^2 - i)/(2 s^2)), computed as log(1 + excess)."""
    i = np.arange(order + 1, dtype=np.float64)
    log_binomial = (
        scipy.special.gammaln(order + 1.0) - scipy.special.gammaln(i + 1.0) - scipy.special.gammaln(order - i + 1.0)
    )
    weight = log_binomial + i * math.log(sample_rate) + (order - i) * math.log1p(-sample_rate)
    exponent = (i * i - i) / (2.0 * noise_multiplier**2)
    # The weights sum to 1, so the moment is 1 + sum weight (e^x - 1), which loses no digits close to 1.
    with np.errstate(over="ignore", divide="ignore"):
        excess = weight + np.where(exponent > 30.0, exponent, np.log(np.expm1(np.minimum(exponent, 30.0))))
    total = float(np.logaddexp.reduce(excess))
    # gammaln has a relative error of about 1e-15.
    return float(np.logaddexp(0.0, total)) * (1.0 + 1e-11) if total > -700.0 else 0.0
