"""The event of Laplace noise on the votes of teachers on disjoint shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import Release, checked_orders, rounded_up
from privacy.numerics import pld


@dataclass(frozen=True)
class LaplaceVotes(Release):
    """argmax(counts + Lap(scale)) over teachers on disjoint shards (Papernot et al. 2017; DGD, with scale 2/eps0).

    Two counts move by one: two Laplace mechanisms of unit shift, whatever the votes (data-independent).

    >>> LaplaceVotes(40.0).pure_epsilon
    0.05
    """

    kind: ClassVar[str] = "laplace_votes"
    scale: float

    @property
    def _shift(self) -> float:
        return 1.0 / self.scale if self.scale else math.inf

    @property
    def pure_epsilon(self) -> float:
        shift = self._shift
        return 2.0 * shift if shift in (0.0, math.inf) else rounded_up(2.0 * shift, 2 / Fraction(self.scale))

    @property
    def loss_std(self) -> float:
        return math.sqrt(2.0) * self._shift

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Twice that of one unit-shift Laplace mechanism (Mironov 2017)."""
        order, shift = checked_orders(orders), self._shift
        if math.isinf(shift):
            return np.full_like(order, np.inf)
        upper = np.log(order / (2.0 * order - 1.0)) + (order - 1.0) * shift
        lower = np.log((order - 1.0) / (2.0 * order - 1.0)) - order * shift
        # At tiny shifts rounding would give less than the true value: order * shift^2 / 2 is above it and below shift.
        value = np.logaddexp(upper, lower) / (order - 1.0) + 4e-16 / (order - 1.0)
        return 2.0 * np.clip(value, 0.0, shift)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        if self._shift == 0.0:
            return pld.zero_loss(interval), pld.zero_loss(interval)
        loss = pld.convolve_pair(pld.laplace_loss(self._shift, interval))
        return loss, loss
