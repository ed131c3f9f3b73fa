"""The event of a label released by randomized response."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_count
from privacy.events.base import Release, checked_orders
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
        loss = pld.atoms(interval, [eps, 0.0, -eps], [true, middle, other]) if eps else pld.zero_loss(interval)
        return loss, loss
