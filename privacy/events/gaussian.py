"""Events of Gaussian noise: on a vector, and on votes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import Release, checked_orders
from privacy.numerics import pld


class GaussianMechanism(Release):
    """What is exactly μ-GDP.

    Adaptively chosen queries compose exactly when their scales are fixed beforehand: μ^2 adds.
    """

    @property
    @abstractmethod
    def gaussian_mu(self) -> float:
        """μ: L2 sensitivity over the noise's standard deviation."""

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """μ^2 l / 2, exact (Mironov 2017, Proposition 7)."""
        return 0.5 * self.gaussian_mu * self.gaussian_mu * checked_orders(orders)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.gaussian_mu)

    @property
    def loss_std(self) -> float:
        return self.gaussian_mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        mu = self.gaussian_mu
        loss = pld.zero_loss(interval) if mu == 0.0 else pld.gaussian_loss(mu, interval)
        return loss, loss


@dataclass(frozen=True)
class Gaussian(GaussianMechanism):
    """Gaussian noise on a vector: `mu` is the L2 sensitivity divided by the noise's standard deviation.

    >>> Gaussian(0.2).rdp([2.0])
    array([0.04])
    """

    kind: ClassVar[str] = "gaussian"
    mu: float

    @property
    def gaussian_mu(self) -> float:
        return self.mu


@dataclass(frozen=True)
class GaussianVotes(GaussianMechanism):
    """argmax(counts + N(0, noise_std^2)) over teachers on disjoint shards (Papernot et al. 2018; DGD+).

    One record changes one teacher, so two counts move by one: L2 = sqrt(2), and argmax is post-processing of the noisy
    counts.

    >>> round(GaussianVotes(40.0).gaussian_mu, 6)
    0.035355
    """

    kind: ClassVar[str] = "gaussian_votes"
    noise_std: float

    @property
    def gaussian_mu(self) -> float:
        return math.sqrt(2.0) / self.noise_std if self.noise_std else math.inf
