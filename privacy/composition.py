"""epsilon of everything that was released: the record-level figure as a pure function of counts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.checks import check_count, check_delta
from privacy.gaussian import gaussian_epsilon
from privacy.rdp import rdp_curve_epsilon
from privacy.releases import Release


@dataclass(frozen=True)
class Reading:
    """An epsilon and how it was reached ("none", "exact", "rdp", "pld" or "unbounded")."""

    epsilon: float
    method: str


def compose(counts: Mapping[Release, int], delta: float) -> Reading:
    """epsilon at ``delta`` of all releases together, whatever their order.

    Gaussian releases compose exactly; so does every kind that knows its own composition. Mixtures take the smaller of two
    valid bounds, RDP and pessimistically rounded privacy-loss distributions. epsilons under one delta are never added.

    Args:
        counts: how often each release happened; zero counts cost nothing, even of an unbounded release.
        delta: failure probability in (0, 1).

    Raises:
        ValueError: on a negative or fractional count, or ``delta`` outside (0, 1).

    >>> from privacy.releases import Gaussian
    >>> compose({Gaussian(0.02): 100}, 1e-5).epsilon == compose({Gaussian(0.2): 1}, 1e-5).epsilon
    True
    >>> compose({}, 1e-5)
    Reading(epsilon=0.0, method='none')
    """
    delta = check_delta(delta)
    kept: dict[Release, int] = {}
    for release, count in counts.items():
        if not isinstance(release, Release):
            raise ValueError(f"counts must map releases to how often they happened, got the key {release!r}")
        number = check_count("count", count)
        if number:
            kept[release] = number
    return _compose(frozenset(kept.items()), delta)


@functools.lru_cache(maxsize=1024)
def _compose(items: frozenset[tuple[Release, int]], delta: float) -> Reading:
    if not items:
        return Reading(0.0, "none")
    if not all(release.bounded for release, _ in items):
        return Reading(math.inf, "unbounded")
    squares = [(release.gaussian_mu, count) for release, count in items]
    if all(mu is not None for mu, _ in squares):
        total = math.fsum(count * mu * mu for mu, count in squares if mu is not None)
        return Reading(gaussian_epsilon(math.sqrt(total), delta), "exact")

    def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros_like(orders)
        for release, count in items:
            total = total + count * release.rdp(orders)
        return total

    return Reading(rdp_curve_epsilon(curve, delta), "rdp")
