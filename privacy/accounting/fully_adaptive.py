"""ε that holds although later mechanisms were chosen by earlier answers: privacy filters.

`compose` takes the mechanisms as fixed beforehand. A filter takes each as it comes, and ends everything before a budget
that was fixed beforehand is exceeded:

- Σ μ² ≤ B, for μ-GDP mechanisms (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian differential
  privacy"). An ε-DP mechanism is μ-GDP with μ = 2 Φ⁻¹(e^ε/(1 + e^ε)) (Dong, Roth and Su 2019).
- Σ RDP(α) ≤ B(α), at a fixed order α (Feldman and Zrnic 2021, "Individual privacy accounting via a Rényi filter").
- Σ ε ≤ B, for ε-DP mechanisms (Rogers et al. 2016, "Privacy odometers and filters"), at δ = 0.

Here everything goes on as long as one of these filters allows it. Whatever happens is then what the last of them to end
allows, so the loss exceeds ε only if it does under one of them, and their δ add up: one half is the first's, and the
orders share the other equally.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy

from privacy.checks import check_count, check_delta
from privacy.events import OneOf, Release, Repeated
from privacy.events.base import pure_sum
from privacy.neighbours import IncompatibleNeighbours, common_neighbours
from privacy.numerics.epsilon import gaussian_epsilon

ORDERS = 1.0 + 2.0 ** np.arange(-1, 11)
"""Fixed orders, from 1.5 to 1025."""


def fully_adaptive_epsilon(counts: Mapping[Release, int], delta: float) -> float:
    """Smallest target with which the filters would have allowed these releases; `inf` if there is none.

    It decides whether a release is allowed under a target. What holds is the target, not the value before it is
    reached: a budget must be fixed before the first release.

    Args:
        counts: How often each release happened.
        delta: Failure probability in (0, 1).

    Raises:
        ValueError: A negative or fractional count, or `delta` outside (0, 1).
    """
    delta = check_delta(delta)
    made = {release: number for release, count in counts.items() if (number := check_count("count", count))}
    try:
        common_neighbours((release.unit, release.relation) for release in made)
    except IncompatibleNeighbours:
        return math.inf
    if not all(release.bounded for release in made):
        return math.inf
    squares = math.fsum(number * squared_mu(release) for release, number in made.items())
    renyi = sum((number * release.rdp(ORDERS) for release, number in made.items()), np.zeros_like(ORDERS))
    share = math.log(delta / (2 * len(ORDERS)))
    by_order = renyi + np.log1p(-1.0 / ORDERS) - (share + np.log(ORDERS)) / (ORDERS - 1.0)
    found = min(gaussian_epsilon(math.sqrt(squares), delta / 2), float(by_order.min()), pure_sum(made.items()))
    return max(0.0, found * (1 + 1e-12))  # never below it by rounding


def squared_mu(release: Release) -> float:
    """μ² for which a release is μ-GDP; `inf` if no lemma gives one."""
    if isinstance(release, Repeated):
        return release.count * squared_mu(release.release)
    if isinstance(release, OneOf):
        return max(math.fsum(n * squared_mu(one) for one, n in alternative) for alternative in release.alternatives)
    if release.gaussian_mu is not None:
        return release.gaussian_mu**2
    return float(2.0 * scipy.special.ndtri(scipy.special.expit(release.pure_epsilon))) ** 2
