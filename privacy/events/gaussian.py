"""Events of Gaussian noise on a vector, on all records or on a Poisson sample (DP-SGD)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import LARGEST_DIVERGENCE, Relation, Release, Unit, checked_orders
from privacy.numerics import pld
from privacy.numerics.epsilon import sampled_gaussian_rdp


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
        loss = pld.gaussian_loss(self.mu, interval)
        return loss, loss


_LARGEST_SAMPLED_MU = 1e3


def _mu_if_sampled(mu: float, sample_rate: float) -> float | None:
    """μ of a Gaussian mechanism that equals one of μ = `mu` in which a record takes part at this rate; None if none."""
    if 0.0 in (mu, sample_rate):
        return 0.0
    return mu if sample_rate == 1.0 else None


@dataclass(frozen=True)
class SampledGaussian(Release):
    """One DP-SGD step: Poisson sampling, noise of `noise_multiplier` clipping norms, add-or-remove one record.

    This covers a step of Opacus with Poisson sampling, but not batches of a shuffled loader.
    """

    kind: ClassVar[str] = "sampled_gaussian"
    noise_multiplier: float
    sample_rate: float
    relation: Relation = field(default=Relation.ADD_OR_REMOVE, kw_only=True, repr=False)

    @property
    def _mu(self) -> float:
        return 1.0 / self.noise_multiplier if self.noise_multiplier else math.inf

    @property
    def gaussian_mu(self) -> float | None:
        return _mu_if_sampled(self._mu, self.sample_rate)

    @property
    def loss_std(self) -> float:
        square = min(self._mu * self._mu, 700.0)
        return min(self._mu, math.sqrt(math.log1p(self.sample_rate**2 * math.expm1(square))))

    @property
    def loss_reach(self) -> float:
        # Between the losses 12 standard deviations below the null's mean and above the shifted one's.
        q, wide, half = self.sample_rate, 12.0 * self._mu, 0.5 * self._mu * self._mu
        top = wide + half
        upper = math.log1p(q * math.expm1(top)) if top < 700.0 else top + math.log(q)
        return upper - math.log1p(q * math.expm1(-wide - half))

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Mironov, Talwar and Zhang 2019, Section 3.3, for the worse direction; see `sampled_gaussian_rdp`."""
        order = checked_orders(orders)
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).rdp(order)
        if not self._mu * self._mu <= LARGEST_DIVERGENCE:  # where the series would underflow, to nothing
            return np.full_like(order, np.inf)
        return sampled_gaussian_rdp(self.noise_multiplier, self.sample_rate, order)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        if self._mu > _LARGEST_SAMPLED_MU:
            # Its grid would not fit into memory; composition falls back to RDP.
            return super().losses(interval)
        return pld.sampled_gaussian_losses(self.noise_multiplier, self.sample_rate, interval)


@dataclass(frozen=True)
class RevealedGaussian(Release):
    """A Gaussian release that happens with probability `sample_rate`, where the output reveals whether it happened.

    It covers labels in direct training on private images (DPDFD, Algorithm 3): images are public in this unit, so the
    update shows who took part and sampling amplifies nothing. A label moves its gradient by at most two norm bounds:
    μ = 2/σ. N of them have δ = sum over K of Bin(K; N, q) δ_GDP(sqrt(K) μ).
    """

    kind: ClassVar[str] = "revealed_gaussian"
    mu: float
    sample_rate: float
    unit: Unit = field(default=Unit.LABEL, kw_only=True, repr=False)
    relation: Relation = field(default=Relation.REPLACE_ONE, kw_only=True, repr=False)

    @property
    def gaussian_mu(self) -> float | None:
        return _mu_if_sampled(self.mu, self.sample_rate)

    @property
    def loss_std(self) -> float:
        return math.sqrt(self.sample_rate) * self.mu

    @property
    def loss_reach(self) -> float:
        return self.mu * (24.0 + self.mu)

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """log(1 - q + q exp(l (l-1) μ^2 / 2))/(l - 1), exact."""
        order = checked_orders(orders)
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).rdp(order)
        exponent = 0.5 * order * (order - 1.0) * self.mu * self.mu
        q = self.sample_rate
        small = np.log1p(q * np.expm1(np.minimum(exponent, 1.0)))
        large = np.logaddexp(math.log1p(-q), math.log(q) + exponent)
        return np.where(exponent < 1.0, small, large) / (order - 1.0)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        loss = pld.gaussian_loss(self.mu, interval, rate=self.sample_rate)
        return loss, loss
