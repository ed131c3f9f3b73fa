"""Events of a noisy label: by randomized response, or by a vote of teachers on disjoint shards."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_count
from privacy.events.base import Release, checked_orders, rounded_up
from privacy.numerics import pld


@dataclass(frozen=True)
class RandomizedResponse(Release):
    """One randomized response over `num_candidates` classes: the true one with probability e^eps/(e^eps + k - 1).

    The candidate set comes from the student, so a record changes only the teacher's label, which may move within the
    set, into it or out of it. Outside it, the response is uniform, the average of the peaked ones; hockey-stick
    divergences are convex, so a move within the set dominates the other two. The loss is +eps, 0 or -eps, so N
    responses compose **exactly** on an integer lattice.

    >>> RandomizedResponse(1.0, 10).pure_epsilon
    1.0
    """

    kind: ClassVar[str] = "randomized_response"
    epsilon: float
    num_candidates: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "num_candidates", check_count("num_candidates", self.num_candidates, minimum=2))

    @property
    def probabilities(self) -> tuple[float, float]:
        """Probability of the true class, and of each other one."""
        # Divided through by e^eps, which overflows at 710.
        scale = 1.0 / (1.0 + (self.num_candidates - 1) * math.exp(-self.epsilon))
        return scale, scale * math.exp(-self.epsilon)

    def covers(self, planned: Release) -> bool:
        """The plan has the smallest of the sizes fixed before the run; a response over more candidates uses it up."""
        return (
            isinstance(planned, RandomizedResponse)
            and self == replace(planned, num_candidates=self.num_candidates)
            and self.num_candidates >= planned.num_candidates
        )

    @property
    def pure_epsilon(self) -> float:
        return self.epsilon

    @property
    def lattice(self) -> float | None:
        return self.epsilon if self.epsilon > 0.0 else None

    @property
    def loss_std(self) -> float:
        true, other = self.probabilities
        return self.epsilon * math.sqrt(true + other)

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """log(p^l q^(1-l) + q^l p^(1-l) + (k-2) q)/(l-1), exact."""
        order = checked_orders(orders)
        if math.isinf(self.epsilon):
            return np.full_like(order, np.inf)
        eps, k = self.epsilon, self.num_candidates
        log_norm = eps + math.log1p((k - 1) * math.exp(-eps))
        terms = [order * eps, (1.0 - order) * eps]
        if k > 2:
            terms.append(np.full_like(order, math.log(k - 2)))
        total = np.logaddexp.reduce(np.stack(terms), axis=0) - log_norm
        # Never below 0 by rounding, and never above what pure epsilon allows.
        value: NDArray[np.float64] = np.clip(total / (order - 1.0), 0.0, eps)
        return value

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        true, other = self.probabilities
        middle = (self.num_candidates - 2) * other
        eps = self.epsilon
        loss = pld.atoms(interval, [eps, 0.0, -eps], [true, middle, other])
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
        loss = pld.convolve_pair(pld.laplace_loss(self._shift, interval))
        return loss, loss
