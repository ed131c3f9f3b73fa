"""The event of Gaussian noise on a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import Release, checked_orders
from privacy.numerics import pld


@dataclass(frozen=True)
class Gaussian(Release):
    """Gaussian noise on a vector: `mu` is the L2 sensitivity divided by the noise's standard deviation.

    Exactly μ-GDP. Adaptively chosen queries compose exactly when their scales are fixed beforehand: μ^2 adds.

    >>> Gaussian(0.2).rdp([2.0])
    array([0.04])
    """

    kind: ClassVar[str] = "gaussian"
    mu: float

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """μ^2 l / 2, exact (Mironov 2017, Proposition 7)."""
        return 0.5 * self.mu * self.mu * checked_orders(orders)

    @property
    def loss_std(self) -> float:
        return self.mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        loss = pld.zero_loss(interval) if self.mu == 0.0 else pld.gaussian_loss(self.mu, interval)
        return loss, loss
