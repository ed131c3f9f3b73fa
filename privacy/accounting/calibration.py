"""Noise, or the number of releases, for a target ε, under either accounting.

Both are monotone searches over the very functions that report ε afterwards. They end on the side where the target
holds, and return the achieved ε, which never exceeds it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from privacy.checks import check_number

#: Stands for any number of releases, where more cost the same.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Calibration:
    """A noise scale or a number of releases, and the ε that the same accounting reports for it: at most the target."""

    value: float
    epsilon: float


def calibrate_noise(
    epsilon_of: Callable[[float], float], target_epsilon: float, *, low: float = 1e-6, high: float = 1e12
) -> Calibration:
    """The smallest noise with `epsilon_of(noise) <= target_epsilon`, to 1e-6 relative, rounded to the safe side.

    Args:
        epsilon_of: ε as a non-increasing function of the noise.
        target_epsilon: Most that may be spent.
        low: Smallest noise to consider; returned if it suffices.
        high: Noise above which the target counts as out of reach.

    Raises:
        ValueError: Even `high` spends more than the target.

    >>> from privacy import compose
    >>> from privacy.events import Gaussian
    >>> found = calibrate_noise(lambda s: compose({Gaussian(1 / s): 100}, 1e-5).epsilon, 1.0)
    >>> round(found.value, 3), found.epsilon <= 1.0
    (37.306, True)
    """
    target = check_number("target_epsilon", target_epsilon, least=0)
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
        epsilon_of: ε as a non-decreasing function of the count.
        target_epsilon: Most that may be spent.
        limit: Largest count of interest.

    Raises:
        ValueError: `epsilon_of(0)` already exceeds the target.

    >>> from privacy import compose
    >>> from privacy.events import Gaussian
    >>> calibrate_count(lambda n: compose({Gaussian(0.02): n}, 1e-5).epsilon, 1.0).value
    179
    """
    target = check_number("target_epsilon", target_epsilon, least=0)
    if (spent := epsilon_of(0)) > target:
        raise ValueError(f"target_epsilon must be at least {spent:.6g}, what is spent already, got {target:g}")
    low, high = 0, 1
    while high <= limit and epsilon_of(high) <= target:
        low, high = high, high * 2
    fewer = range(low + 1, min(high, limit + 1))
    low += bisect_left(fewer, True, key=lambda count: not epsilon_of(count) <= target)  # NaN does not fit
    return Calibration(low, epsilon_of(low))
