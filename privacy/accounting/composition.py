"""ε of everything that was released: the record-level figure, as a pure function of counts.

`compose` takes the mechanisms as fixed beforehand; `fully_adaptive_epsilon` as chosen by earlier answers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy

from privacy.checks import check_count, check_delta
from privacy.events import Gaussian, OneOf, Release, Repeated
from privacy.events.base import IncompatibleNeighbours, common_neighbours, pure_sum, shared_neighbours
from privacy.numerics import pld
from privacy.numerics.epsilon import gaussian_epsilon, rdp_curve_epsilon

Items: TypeAlias = Sequence[tuple[Release, int]]

# Grid spacing as a share of the standard deviation of one loss: an error of about 1e-5 in epsilon.
_RESOLUTION = 1.0 / 60.0
_MAX_SINGLE = 1 << 17
_MAX_SUM = 1 << 20
_MAX_CHOICES = 256


@dataclass(frozen=True)
class EpsilonBound:
    """An ε and how it was reached ("none", "exact", "rdp", "pld", "pure" or "unbounded")."""

    epsilon: float
    method: str


def compose(counts: Mapping[Release, int], delta: float) -> EpsilonBound:
    """ε at `delta` of all releases together, whatever their order.

    Gaussian releases compose exactly, and so do randomized responses of one ε. Everything else gets the smallest of the
    valid bounds: RDP, pessimistically rounded privacy-loss distributions, and the sum of pure ε. Values of ε at one δ
    are never added.

    Args:
        counts: How often each release happened; a count of zero costs nothing, even for an unbounded release.
        delta: Failure probability in (0, 1).

    Raises:
        ValueError: A negative or fractional count, or `delta` outside (0, 1).
        IncompatibleNeighbours: The releases have different units or neighbouring relations.

    >>> compose({Gaussian(0.02): 100}, 1e-5).epsilon == compose({Gaussian(0.2): 1}, 1e-5).epsilon
    True
    >>> compose({}, 1e-5)
    EpsilonBound(epsilon=0.0, method='none')
    """
    delta = check_delta(delta)
    bounds = [_compose(choice, delta) for choice in _choices(_kept(counts))]
    return max(bounds, key=lambda bound: bound.epsilon)


def known_epsilon(counts: Mapping[Release, int], delta: float, *, adaptive: bool = False) -> float:
    """ε of `compose`, or `fully_adaptive_epsilon`; `inf` if no lemma composes the releases (of records and persons)."""
    try:
        return fully_adaptive_epsilon(counts, delta) if adaptive else compose(counts, delta).epsilon
    except IncompatibleNeighbours:
        return math.inf


def _choices(kept: frozenset[tuple[Release, int]]) -> Iterator[frozenset[tuple[Release, int]]]:
    """The releases for each choice of one alternative per `OneOf`.

    If there are too many choices to enumerate, the `OneOf` events stay and are composed by RDP.
    """
    several = [(release, count) for release, count in kept if isinstance(release, OneOf)]
    # Counts may be arbitrarily large, so the number of ways is computed before they are enumerated.
    exponents = [(len(release.alternatives), min(count, _MAX_CHOICES)) for release, count in several]
    if not several or math.prod(number**count for number, count in exponents) > _MAX_CHOICES:
        yield kept
        return
    rest = Counter({release: count for release, count in kept if not isinstance(release, OneOf)})
    ways = []
    for release, count in several:
        if len(release.alternatives) > 1:
            ways += [[(alternative, 1) for alternative in release.alternatives]] * count
        else:
            ways.append([(release.alternatives[0], count)])
    for choice in itertools.product(*ways):
        total = rest.copy()
        for alternative, times in choice:
            for part, number in alternative:
                total[part] += times * number
        yield _kept(total)


def _kept(counts: Mapping[Release, int]) -> frozenset[tuple[Release, int]]:
    kept: dict[Release, int] = {}
    for release, count in counts.items():
        if not isinstance(release, Release):
            raise ValueError(f"counts must map releases to how often they happened, got the key {release!r}")
        number = check_count("count", count)
        if number:
            # Responses drawn at once cost what they cost one by one.
            one, times = (release.release, release.count) if isinstance(release, Repeated) else (release, 1)
            kept[one] = kept.get(one, 0) + number * times
    common_neighbours((release.unit, release.relation) for release in kept)
    return frozenset(kept.items())


def _merged(items: frozenset[tuple[Release, int]]) -> list[tuple[Release, int]]:
    """Merges all Gaussians and sorts the rest, so that neither hashing nor history changes a digit."""
    squares = [count * mu * mu for release, count in items if (mu := release.gaussian_mu) is not None]
    rest = sorted((item for item in items if item[0].gaussian_mu is None and item[0].pure_epsilon > 0.0), key=repr)
    total = math.sqrt(math.fsum(squares))
    return ([(Gaussian(total), 1)] if total > 0.0 else []) + rest


@functools.lru_cache(maxsize=4096)
def _compose(kept: frozenset[tuple[Release, int]], delta: float) -> EpsilonBound:
    if not kept:
        return EpsilonBound(0.0, "none")
    if not all(release.bounded for release, _ in kept):
        return EpsilonBound(math.inf, "unbounded")
    items = _merged(kept)
    if not items:
        return EpsilonBound(0.0, "exact")
    if len(items) == 1 and items[0][0].gaussian_mu is not None:
        return EpsilonBound(gaussian_epsilon(items[0][0].gaussian_mu, delta), "exact")
    pure = pure_sum(items)
    spacings = {release.lattice for release, _ in items}
    try:
        losses = max(pld.compose_epsilon(parts, delta) for parts in _loss_parts(items))
    except (ValueError, ArithmeticError):  # losses too large for any grid: the other bounds hold
        losses = math.inf
    if len(spacings) == 1 and None not in spacings and _interval(items) in spacings and math.isfinite(losses):
        return EpsilonBound(min(losses, pure), "exact")
    renyi = rdp_curve_epsilon(
        lambda orders: sum((count * release.rdp(orders) for release, count in items), np.zeros_like(orders)), delta
    )
    bounds = {"rdp": renyi, "pld": losses, "pure": pure}
    method = min(bounds, key=lambda name: bounds[name])
    return EpsilonBound(bounds[method], method)


def _loss_parts(items: Items) -> list[list[tuple[pld.LossDistribution, int]]]:
    """Losses of every release on one grid, for removing and for adding the record."""
    interval = _interval(items)
    losses = [(*release.losses(interval), count) for release, count in items]
    remove, add = [(first, count) for first, _, count in losses], [(second, count) for _, second, count in losses]
    return [remove] if all(first is second for first, second, _ in losses) else [remove, add]


def _interval(items: Items) -> float:
    lattices = sorted({release.lattice for release, _ in items if release.lattice is not None})
    rounded = [
        (release, count) for release, count in items if release.lattice is None or release.lattice != lattices[0]
    ]
    variance = math.fsum(count * release.loss_std**2 for release, count in items)
    if not rounded:
        if 30.0 * math.sqrt(variance) / lattices[0] < 4 * _MAX_SUM:
            return lattices[0]
        rounded = list(items)
    rounds = math.fsum(count for _, count in rounded)
    # Splitting a bin adds at most interval^2/4 of variance per release.
    wanted = _RESOLUTION * math.sqrt(variance / rounds)
    widest = max(release.loss_reach for release, _ in rounded)
    interval = max(wanted, 30.0 * math.sqrt(variance) / _MAX_SUM, widest / _MAX_SINGLE)
    # A lattice keeps its exactness where the grid divides it.
    return lattices[0] / math.ceil(lattices[0] / interval) if lattices and lattices[0] > interval else interval


#: Fixed orders of the filters, from 1.5 to 1025.
ORDERS = 1.0 + 2.0 ** np.arange(-1, 11)


def fully_adaptive_epsilon(counts: Mapping[Release, int], delta: float) -> float:
    """Smallest target with which privacy filters would have allowed these releases; `inf` if there is none.

    A filter takes each mechanism as it comes, chosen by earlier answers, and ends everything before a budget that was
    fixed beforehand is exceeded:

    - Σ μ² ≤ B, for μ-GDP mechanisms (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian differential
      privacy"). An ε-DP mechanism is μ-GDP with μ = 2 Φ⁻¹(e^ε/(1 + e^ε)) (Dong, Roth and Su 2019).
    - Σ RDP(α) ≤ B(α), at a fixed order α (Feldman and Zrnic 2021, "Individual privacy accounting via a Rényi filter").
    - Σ ε ≤ B, for ε-DP mechanisms (Rogers et al. 2016, "Privacy odometers and filters"), at δ = 0.

    Here everything goes on as long as one of these filters allows it. Whatever happens is then what the last of them to
    end allows, so the loss exceeds ε only if it does under one of them, and their δ add up: one half is the first's,
    and the orders share the other equally.

    The result decides whether a release is allowed under a target. What holds is the target, not the value before it is
    reached: a budget must be fixed before the first release.

    Args:
        counts: How often each release happened.
        delta: Failure probability in (0, 1).

    Raises:
        ValueError: A negative or fractional count, or `delta` outside (0, 1).
    """
    delta = check_delta(delta)
    made = {release: number for release, count in counts.items() if (number := check_count("count", count))}
    if shared_neighbours(made) is None or not all(release.bounded for release in made):
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
