"""Data-dependent Renyi bounds of votes: **themselves private**, for research records, never for a guarantee.

They are smaller where teachers agree, and for that very reason their value reveals something about the private data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from privacy.checks import check_positive


def gnmax_log_error(counts: ArrayLike, noise_std: float) -> float:
    """log of a bound on the probability that the noisy argmax is not the plurality (Papernot 2018, Prop. 7).

    Args:
        counts: votes per class, shape (classes,).
        noise_std: standard deviation of the noise on each count.
    """
    votes = np.asarray(counts, dtype=np.float64)
    if votes.ndim != 1 or votes.size < 2 or not np.all(np.isfinite(votes)) or np.any(votes < 0):
        raise ValueError(f"counts must be a vector of at least 2 non-negative numbers, got {counts!r}")
    std = check_positive("noise_std", noise_std)
    winner = int(np.argmax(votes))
    gaps = votes[winner] - np.delete(votes, winner)
    bound = float(logsumexp(log_ndtr(-gaps / (math.sqrt(2.0) * std))))
    return min(bound, math.log1p(-1.0 / votes.size))


def gnmax_data_dependent_rdp(counts: ArrayLike, noise_std: float, orders: ArrayLike) -> NDArray[np.float64]:
    """RDP of one Gaussian noisy vote with these counts (Papernot et al. 2018, Theorem 6 with Proposition 10's orders).

    Not a privacy guarantee on its own: the figure depends on private votes. It is never above the data-independent
    l/std^2.

    Args:
        counts: votes per class, shape (classes,).
        noise_std: standard deviation of the noise on each count.
        orders: orders above 1.

    Returns:
        Bounds, shape of `orders`.

    >>> gnmax_data_dependent_rdp([200, 30, 20, 0, 0, 0, 0, 0, 0, 0], 40.0, [2.0, 8.0])
    array([0.00087966, 0.00108564])
    """
    log_q = gnmax_log_error(counts, noise_std)
    order = np.asarray(orders, dtype=np.float64)
    if not np.all(order > 1.0):
        raise ValueError(f"orders must all be above 1, got {orders!r}")
    variance = float(noise_std) ** 2
    independent = order / variance
    high2 = math.sqrt(variance * -log_q)
    high1 = high2 + 1.0
    if high2 <= 1.0:
        return independent
    rdp1, rdp2 = high1 / variance, high2 / variance
    # Theorem 6 needs q small enough for its bound to increase in q, and for A to be positive.
    limit = (high2 - 1.0) * rdp2 - high2 * (math.log1p(1.0 / (high1 - 1.0)) + math.log1p(1.0 / (high2 - 1.0)))
    if log_q > limit or -log_q <= rdp2:
        return independent
    log_keep = _log1mexp(log_q)
    log_a = (order - 1.0) * (log_keep - _log1mexp((log_q + rdp2) * (1.0 - 1.0 / high2)))
    log_b = (order - 1.0) * (rdp1 - log_q / (high1 - 1.0))
    dependent = np.logaddexp(log_keep + log_a, log_q + log_b) / (order - 1.0)
    return np.where(order < high1, np.minimum(dependent, independent), independent)


def _log1mexp(x: float) -> float:
    """log(1 - e^x) for x < 0."""
    return math.log(-math.expm1(x)) if x > -1.0 else math.log1p(-math.exp(x))
