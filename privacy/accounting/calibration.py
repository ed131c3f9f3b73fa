"""Noise, or the number of releases, for a target ε, under either accounting.

Everything is a monotone search over the very functions that will report ε afterwards, and ends on the side where
the target holds: the achieved ε comes back with the answer and is never above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from privacy.accounting.composition import compose
from privacy.checks import check_delta, check_nonnegative
from privacy.events import Release
from privacy.numerics.gaussian import gaussian_mu

#: The count of releases of which any number costs the same.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Calibration:
    """A setting and the ε that it reaches, never above the target.

    Attributes:
        value: noise scale, or number of releases.
        epsilon: what the same accounting reports for `value`.
    """

    value: float
    epsilon: float


def calibrate_noise(
    epsilon_of: Callable[[float], float], target_epsilon: float, *, low: float = 1e-6, high: float = 1e12
) -> Calibration:
    """The smallest noise with `epsilon_of(noise) <= target_epsilon`, to 1e-6 relative, rounded to the safe side.

    Args:
        epsilon_of: non-increasing in the noise.
        target_epsilon: most that may be spent.
        low: noise below which nothing is searched; returned if it suffices.
        high: noise above which the target counts as out of reach.

    Raises:
        ValueError: Even `high` spends more than the target.

    >>> from privacy.events import Gaussian
    >>> found = calibrate_noise(lambda s: compose({Gaussian(1 / s): 100}, 1e-5).epsilon, 1.0)
    >>> round(found.value, 3), found.epsilon <= 1.0
    (37.306, True)
    """
    target = _target(target_epsilon)
    best = epsilon_of(high)
    if best > target:
        raise ValueError(f"target_epsilon must be at least {best:.6g}, what noise {high:g} costs, got {target:g}")
    first = epsilon_of(low)
    if first <= target:
        return Calibration(low, first)
    while high > low * (1.0 + 1e-6):
        middle = math.sqrt(low * high)
        value = epsilon_of(middle)
        if value <= target:
            high, best = middle, value
        else:
            low = middle
    return Calibration(high, best)


def calibrate_count(epsilon_of: Callable[[int], float], target_epsilon: float, *, limit: int = NO_LIMIT) -> Calibration:
    """The largest count with `epsilon_of(count) <= target_epsilon`, up to `limit`.

    Args:
        epsilon_of: non-decreasing in the count.
        target_epsilon: most that may be spent.
        limit: largest count of interest.

    Raises:
        ValueError: `epsilon_of(0)` is above the target already.

    >>> from privacy.events import Gaussian
    >>> calibrate_count(lambda n: compose({Gaussian(0.02): n}, 1e-5).epsilon, 1.0).value
    179
    """
    target = _target(target_epsilon)
    best = epsilon_of(0)
    if best > target:
        raise ValueError(f"target_epsilon must be at least {best:.6g}, what is spent already, got {target:g}")
    low, high = 0, 1
    while high <= limit and (value := epsilon_of(high)) <= target:
        low, best, high = high, value, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        value = epsilon_of(middle)
        if value <= target:
            low, best = middle, value
        else:
            high = middle
    return Calibration(low, best)


def max_count(
    release: Release, budget_epsilon: float, delta: float, already: Mapping[Release, int] | None = None
) -> int:
    """How many further releases fit into a budget beside what was released already.

    In closed form where all is Gaussian, else by bisection on `privacy.compose`.

    Args:
        release: what is going to be released n times.
        budget_epsilon: most that all may cost together.
        delta: failure probability in (0, 1).
        already: what was released before.

    Returns:
        n, 0 where not one fits; `NO_LIMIT` (2**62) where releases cost nothing.

    >>> from privacy.events import Gaussian
    >>> max_count(Gaussian(0.02), 1.0, 1e-5)
    179
    >>> max_count(Gaussian(0.02), 1.0, 1e-5, {Gaussian(0.02): 100})
    79
    """
    target = _target(budget_epsilon)
    delta = check_delta(delta)
    before = dict(already or {})

    def spent(count: int) -> float:
        return compose({**before, release: before.get(release, 0) + count}, delta).epsilon

    if compose(before, delta).epsilon > target or spent(1) > target:
        return 0
    mu = release.gaussian_mu
    if mu == 0.0 or release.pure_epsilon == 0.0:
        return NO_LIMIT
    used = [(other.gaussian_mu, count) for other, count in before.items() if count]
    if mu is not None and all(other is not None for other, _ in used):
        room = gaussian_mu(target, delta) ** 2 - math.fsum(count * m * m for m, count in used if m is not None)
        count = min(NO_LIMIT, max(1, math.floor(room / (mu * mu))))
        # The inverse is rounded down by 1e-12: the reporting functions decide.
        while count > 1 and spent(count) > target:
            count -= max(1, count // 10**12)
        while count < NO_LIMIT and spent(count + 1) <= target:
            count += 1
        return count
    return int(calibrate_count(spent, target, limit=2**40).value)


def _target(target_epsilon: float) -> float:
    return check_nonnegative("target_epsilon", target_epsilon)
