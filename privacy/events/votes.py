"""Events of noisy votes by teachers on disjoint shards, and of the check whether they agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_nonnegative
from privacy.events.base import Release, checked_orders
from privacy.events.gaussian import Gaussian
from privacy.events.randomized_response import RandomizedResponse
from privacy.numerics import pld
from privacy.numerics.rdp import laplace_rdp

__all__ = ["DiscreteLaplaceVotes", "GaussianVotes", "LaplaceVotes", "ThresholdCheck"]


@dataclass(frozen=True)
class GaussianVotes(Release):
    """argmax(counts + N(0, noise_std^2)) over teachers on disjoint shards (Papernot et al. 2018; DGD+).

    One record changes one teacher, so two counts move by one: L2 = sqrt(2), and argmax is post-processing of the noisy
    counts.

    >>> round(GaussianVotes(40.0).gaussian_mu, 6)
    0.035355
    """

    kind: ClassVar[str] = "gaussian_votes"
    noise_std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_std", check_nonnegative("noise_std", self.noise_std, infinite=True))

    @property
    def gaussian_mu(self) -> float:
        return math.sqrt(2.0) / self.noise_std if self.noise_std else math.inf

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """l / noise_std^2, exact for the noisy counts."""
        return Gaussian(self.gaussian_mu).rdp(orders)

    @property
    def bounded(self) -> bool:
        return self.noise_std > 0.0

    @property
    def loss_std(self) -> float:
        return self.gaussian_mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        return Gaussian(self.gaussian_mu).losses(interval)


@dataclass(frozen=True)
class ThresholdCheck(Release):
    """max(counts) + N(0, noise_std^2) against a threshold (confident votes): every check costs, the rejected ones too.

    One record moves the largest count by at most one, so μ = 1/noise_std.
    """

    kind: ClassVar[str] = "threshold_check"
    noise_std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_std", check_nonnegative("noise_std", self.noise_std, infinite=True))

    @property
    def gaussian_mu(self) -> float:
        return 1.0 / self.noise_std if self.noise_std else math.inf

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """l / (2 noise_std^2)."""
        return Gaussian(self.gaussian_mu).rdp(orders)

    @property
    def bounded(self) -> bool:
        return self.noise_std > 0.0

    @property
    def loss_std(self) -> float:
        return self.gaussian_mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        return Gaussian(self.gaussian_mu).losses(interval)


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
        return self.scale > 0.0

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


@dataclass(frozen=True)
class DiscreteLaplaceVotes(Release):
    """argmax(counts + integers of probability proportional to exp(-|x|/scale)): noise without low bits.

    Two counts move by one, and one step of the integers has a loss of exactly +1/scale or -1/scale: two randomized
    responses between two outcomes (the binary mechanism that has the largest δ of all with that ε). So it
    costs **more** than `LaplaceVotes` of the same scale, whose loss may lie in between, though pure ε is
    the same.

    >>> DiscreteLaplaceVotes(40.0).pure_epsilon
    0.05
    """

    kind: ClassVar[str] = "discrete_laplace_votes"
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
    def lattice(self) -> float | None:
        return 2.0 * self._shift if self._shift > 0.0 else None

    @property
    def loss_std(self) -> float:
        return math.sqrt(2.0) * self._shift

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Twice that of a randomized response between two outcomes, exact for the noisy counts."""
        return 2.0 * RandomizedResponse(self._shift, 2).rdp(orders)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        step = self._shift
        if step == 0.0:
            return pld.zero_loss(interval), pld.zero_loss(interval)
        up, down = RandomizedResponse(step, 2).probabilities
        loss = pld.atoms(interval, [2.0 * step, 0.0, -2.0 * step], [up * up, 2.0 * up * down, down * down])
        return loss, loss
