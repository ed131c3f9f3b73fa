"""The event of one mechanism run several times on what one record decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_count
from privacy.events.base import Release
from privacy.neighbours import Relation, Unit
from privacy.numerics import pld

__all__ = ["Repeated"]


@dataclass(frozen=True)
class Repeated(Release):
    """`count` releases of one kind made at once, such as the responses for a batch: one entry of a ledger, not many.

    Costs exactly what they cost one by one: composition counts them so.

    >>> from privacy.events import RandomizedResponse
    >>> Repeated(RandomizedResponse(1.0, 10), 256).pure_epsilon
    256.0
    """

    kind: ClassVar[str] = "repeated"
    release: Release
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.release, Release) or isinstance(self.release, Repeated):
            raise ValueError(f"release must be a single release, got {self.release!r}")
        object.__setattr__(self, "count", check_count("count", self.count, minimum=1))
        object.__setattr__(self, "unit", self.release.unit)
        object.__setattr__(self, "relation", self.release.relation)

    def about(self, unit: Unit, relation: Relation) -> Repeated:
        """See `Release.about`; neighbours are those of the single release."""
        return replace(self, release=self.release.about(unit, relation))

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """`count` times that of one."""
        return self.count * self.release.rdp(orders)

    def covers(self, planned: Release) -> bool:
        """As many, each of which does."""
        return isinstance(planned, Repeated) and self.count == planned.count and self.release.covers(planned.release)

    @property
    def gaussian_mu(self) -> float | None:
        mu = self.release.gaussian_mu
        return None if mu is None else math.sqrt(self.count) * mu

    @property
    def bounded(self) -> bool:
        return self.release.bounded

    @property
    def pure_epsilon(self) -> float:
        return self.count * self.release.pure_epsilon

    @property
    def lattice(self) -> float | None:
        return self.release.lattice

    @property
    def loss_std(self) -> float:
        return math.sqrt(self.count) * self.release.loss_std

    @property
    def loss_reach(self) -> float:
        return self.count * self.release.loss_reach

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        first, second = self.release.losses(interval)
        if first is second:
            total = pld.convolve_copies(first, self.count)
            return total, total
        return pld.convolve_copies(first, self.count), pld.convolve_copies(second, self.count)
