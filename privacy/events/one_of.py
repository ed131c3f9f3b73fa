"""The event of one among several trainings, where a record was in one of them, unknown which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_count
from privacy.events.base import Release, release_from_dict
from privacy.neighbours import common_neighbours
from privacy.numerics import pld

__all__ = ["OneOf"]

Alternative = tuple[tuple[Release, int], ...]


@dataclass(frozen=True)
class OneOf(Release):
    """What is released of a record that lies at one of several clients, each with a training of its own.

    Each alternative is all that one client's training released. Wherever the record is, the largest of them bounds it;
    which one that is depends on δ and on what else is composed, so it is not chosen here: `compose` takes the largest ε
    over all choices.

    >>> from privacy.events import Gaussian
    >>> OneOf((((Gaussian(0.1), 4),), ((Gaussian(0.3), 1),))).rdp([2.0])
    array([0.09])

    Raises:
        ValueError: No alternatives, or one that is made of others.
    """

    kind: ClassVar[str] = "one_of"
    alternatives: tuple[Alternative, ...]

    def __post_init__(self) -> None:
        made = tuple(tuple(_item(item) for item in alternative) for alternative in self.alternatives)
        if not made or not all(made):
            raise ValueError(f"alternatives must be one or more, each of some releases, got {self.alternatives!r}")
        object.__setattr__(self, "alternatives", made)
        pairs = [(release.unit, release.relation) for alternative in made for release, _ in alternative]
        unit, relation = common_neighbours(pairs)
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "relation", relation)

    @classmethod
    def of(cls, trainings: list[Mapping[Release, int]]) -> OneOf:
        """Of what each training released; the same event whatever their order."""
        made = [tuple(sorted(releases.items(), key=repr)) for releases in trainings]
        return cls(tuple(sorted(set(made), key=repr)))

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """The largest curve at each order."""
        curves = [
            np.sum([count * release.rdp(orders) for release, count in alternative], axis=0)
            for alternative in self.alternatives
        ]
        largest: NDArray[np.float64] = np.max(curves, axis=0)
        return largest

    @property
    def bounded(self) -> bool:
        return all(release.bounded for alternative in self.alternatives for release, _ in alternative)

    @property
    def pure_epsilon(self) -> float:
        return max(
            math.fsum(count * release.pure_epsilon for release, count in alternative)
            for alternative in self.alternatives
        )

    @property
    def loss_std(self) -> float:
        return max(
            math.sqrt(math.fsum(count * release.loss_std**2 for release, count in alternative))
            for alternative in self.alternatives
        )

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        """No distribution dominates all of several: by itself it is composed by RDP; see `compose`."""
        loss = pld.LossDistribution(interval, 0, np.zeros(1), 1.0)
        return loss, loss

    def to_dict(self) -> dict[str, Any]:
        """See `Release.to_dict`."""
        plain = [[[release.to_dict(), count] for release, count in alternative] for alternative in self.alternatives]
        return {**super().to_dict(), "alternatives": plain}


def _item(item: Any) -> tuple[Release, int]:
    release, count = item
    made = release_from_dict(release) if isinstance(release, Mapping) else release
    if not isinstance(made, Release) or isinstance(made, OneOf):
        raise ValueError(f"alternatives must be of single releases, got {made!r}")
    return made, check_count("count", count, minimum=1)
