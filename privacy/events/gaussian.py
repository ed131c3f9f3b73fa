"""Events of Gaussian noise on a vector: continuous or on a lattice, on all records or on a Poisson sample (DP-SGD).

For integer shifts the discrete Gaussian (`privacy.mechanisms.discrete_gaussian`) is as private as the continuous one of
the same σ in the Renyi sense, but it is not μ-GDP: its losses lie on a lattice that depends on the shift, and no
one-dimensional pair is known to dominate all shifts of one length in several dimensions. So there are no loss
distributions for it here, and composition uses the Renyi bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import LARGEST_DIVERGENCE, Release, checked_orders
from privacy.neighbours import Relation, Unit
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
        loss = pld.zero_loss(interval) if self.mu == 0.0 else pld.gaussian_loss(self.mu, interval)
        return loss, loss


_LARGEST_SAMPLED_MU = 1e3


class _Sampled(Release):
    """A Gaussian mechanism of μ = `_mu` in which a record takes part with probability `sample_rate`."""

    sample_rate: float

    @property
    @abstractmethod
    def _mu(self) -> float: ...

    @property
    def gaussian_mu(self) -> float | None:
        if self.sample_rate == 0.0 or self._mu == 0.0:
            return 0.0
        return self._mu if self.sample_rate == 1.0 else None


@dataclass(frozen=True)
class SampledGaussian(_Sampled):
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
    def loss_std(self) -> float:
        if self.gaussian_mu is not None:
            return self.gaussian_mu
        square = min(self._mu * self._mu, 700.0)
        return min(self._mu, math.sqrt(math.log1p(self.sample_rate**2 * math.expm1(square))))

    @property
    def loss_reach(self) -> float:
        if self.gaussian_mu is not None:
            return super().loss_reach
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
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).losses(interval)
        if self._mu > _LARGEST_SAMPLED_MU:
            # Its grid would not fit into memory; composition falls back to RDP.
            return super().losses(interval)
        return pld.sampled_gaussian_losses(self.noise_multiplier, self.sample_rate, interval)


@dataclass(frozen=True)
class RevealedGaussian(_Sampled):
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
    def _mu(self) -> float:
        return self.mu

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
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).losses(interval)
        loss = pld.gaussian_loss(self.mu, interval, rate=self.sample_rate)
        return loss, loss


@dataclass(frozen=True)
class DiscreteGaussian(Release):
    """Independent discrete Gaussian noise on a vector of lattice points: `mu` is L2 sensitivity over σ.

    Both are in the same units. Canonne, Kamath and Steinke 2020, Theorem 4 (Proposition 5 for the divergence), adds up
    over coordinates: for an integer shift s the moment of order l is exp(l (l-1) |s|^2 / (2 σ^2)) times a
    product of sum_x exp(-(x - c)^2 / (2 σ^2)) / sum_x exp(-x^2 / (2 σ^2)), and such a ratio is at most 1 for
    every real c by Poisson summation.

    >>> DiscreteGaussian(0.2).rdp([2.0])
    array([0.04])
    """

    kind: ClassVar[str] = "discrete_gaussian"
    mu: float

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """μ^2 l / 2, as for the continuous Gaussian; exact at integer orders."""
        return Gaussian(self.mu).rdp(orders)

    @property
    def pure_epsilon(self) -> float:
        return math.inf if self.mu else 0.0

    @property
    def loss_std(self) -> float:
        return self.mu


@dataclass(frozen=True)
class SampledDiscreteGaussian(Release):
    """One DP-SGD step on a lattice: Poisson sampling, discrete Gaussian noise of `noise_multiplier` norm bounds.

    Add-or-remove one record. Every row is rounded to the lattice within the norm bound before the sum, so a record
    moves the sum by a lattice point s, of length at most 1/noise_multiplier in units of σ.

    At integer orders the bound is that of `SampledGaussian`. Renyi moments are jointly convex, so it is enough to
    look at one batch without the record: N is the noise around its sum, N_s the same shifted by s, L = N_s/N.

    * Removing: E_N[(1 - q + q L)^l] = sum_i binom(l, i) (1-q)^(l-i) q^i E_N[L^i], whose weights are positive, and
      E_N[L^i] is at most its Gaussian value by Canonne, Kamath and Steinke 2020, Proposition 5.
    * Adding: E_N[(1 - q + q L)^(1-l)], which is never larger. Reflection at s/2 maps lattice points to lattice points
      and swaps N with N_s, so L becomes 1/L. (Mironov, Talwar and Zhang 2019, Section 3, show this for densities.) Take
      a point and its image with r = L >= 1 at the point, u = 1 - q + q r, w = 1/(1 - q + q/r) and g(x) = x^l - x^(1-l).
      The moments differ by N times g(u) - (r/w) g(w). As g is convex from g(1) = 0 on and u >= w >= 1,
      g(u)/(u - 1) >= g(w)/(w - 1); and u - 1 = q (r - 1) = (r/w)(w - 1).

    Between integer orders the moment's log is convex and lies below the straight line. An observer who also learns
    whether the record took part sees a `RevealedGaussian`, which therefore bounds every order, also above 4096.

    >>> SampledDiscreteGaussian(1.0, 0.01).rdp([8.0]) == SampledGaussian(1.0, 0.01).rdp([8.0])
    array([ True])
    """

    kind: ClassVar[str] = "sampled_discrete_gaussian"
    noise_multiplier: float
    sample_rate: float
    relation: Relation = field(default=Relation.ADD_OR_REMOVE, kw_only=True, repr=False)

    @property
    def _continuous(self) -> SampledGaussian:
        return SampledGaussian(self.noise_multiplier, self.sample_rate)

    @property
    def pure_epsilon(self) -> float:
        return math.inf if self.sample_rate and math.isfinite(self.noise_multiplier) else 0.0

    @property
    def loss_std(self) -> float:
        return self._continuous.loss_std

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Curve of the continuous step, linear between integer orders; at most that of `RevealedGaussian`."""
        mu = 1.0 / self.noise_multiplier if self.noise_multiplier else math.inf
        return np.minimum(self._continuous.rdp(orders), RevealedGaussian(mu, self.sample_rate).rdp(orders))
