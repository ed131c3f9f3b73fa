"""Events of Laplace noise: on a vector, and on the votes of teachers on disjoint shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_nonnegative
from privacy.events.base import Release, checked_orders
from privacy.numerics import pld
from privacy.numerics.rdp import laplace_rdp

__all__ = ["LaplaceVector", "LaplaceVotes"]


@dataclass(frozen=True)
class LaplaceVector(Release):
    """A vector of L1 sensitivity `l1_sensitivity` with Laplace noise of scale `scale` on every coordinate.

    DGD's latent codes: normalised to [-1, 1]^c and noised at scale 2c/eps1, so l1_sensitivity = 2c and ε = eps1.
    A shift spread over coordinates is dominated by the same shift of one coordinate: going through it coordinate by
    coordinate is group privacy, which for log-concave location families adds shifts exactly (Dong, Roth and Su 2019,
    Section 2.4).

    >>> LaplaceVector(64.0, 6400.0).pure_epsilon
    0.01
    """

    kind: ClassVar[str] = "laplace_vector"
    l1_sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1_sensitivity", check_nonnegative("l1_sensitivity", self.l1_sensitivity))
        object.__setattr__(self, "scale", check_nonnegative("scale", self.scale, infinite=True))

    @property
    def pure_epsilon(self) -> float:
        if self.l1_sensitivity == 0.0:
            return 0.0
        return self.l1_sensitivity / self.scale if self.scale else math.inf

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.pure_epsilon)

    @property
    def loss_std(self) -> float:
        return self.pure_epsilon

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Of a scalar shifted by ε scales, exact (Mironov 2017, Proposition 6)."""
        return laplace_rdp(self.pure_epsilon, checked_orders(orders))

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        shift = self.pure_epsilon
        loss = pld.laplace_loss(shift, interval) if shift else pld.zero_loss(interval)
        return loss, loss


@dataclass(frozen=True)
class LaplaceVotes(Release):
    """argmax(counts + Lap(scale)) over teachers on disjoint shards (Papernot et al. 2017; DGD, with scale 2/eps0).

    Two counts move by one: two Laplace mechanisms of unit shift, whatever the votes (data-independent).

    >>> LaplaceVotes(40.0).pure_epsilon
    0.05
    """

    kind: ClassVar[str] = "laplace_votes"
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_nonnegative("scale", self.scale, infinite=True))

    @property
    def _shift(self) -> float:
        return 1.0 / self.scale if self.scale else math.inf

    @property
    def pure_epsilon(self) -> float:
        return 2.0 * self._shift

    @property
    def bounded(self) -> bool:
        return math.isfinite(self._shift)

    @property
    def loss_std(self) -> float:
        return math.sqrt(2.0) * self._shift

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Twice that of one unit-shift Laplace mechanism."""
        return 2.0 * laplace_rdp(self._shift, checked_orders(orders))

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        if self._shift == 0.0:
            return pld.zero_loss(interval), pld.zero_loss(interval)
        loss = pld.convolve_pair(pld.laplace_loss(self._shift, interval))
        return loss, loss
