"""Events of discrete Gaussian noise (`privacy.mechanisms.discrete_gaussian`), by Renyi bounds only.

For integer shifts the discrete Gaussian is as private as the continuous one of the same σ in the Renyi sense, but it is
not μ-GDP: its losses lie on a lattice that depends on the shift, and no one-dimensional pair is known to dominate all
shifts of one length in several dimensions. So there are no loss distributions here, and composition uses the Renyi
bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import Release
from privacy.events.gaussian import Gaussian
from privacy.events.sampled import RevealedGaussian, SampledGaussian
from privacy.neighbours import Relation


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
