"""Events made of others: one mechanism run several times, and one of several trainings, without knowing which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_count
from privacy.events.base import Relation, Release, Unit, common_neighbours, pure_sum, release_from_dict

Alternative = tuple[tuple[Release, int], ...]


@dataclass(frozen=True)
class Repeated(Release):
    """`count` releases of one kind made at once, such as the responses for a batch, as one entry of a ledger.

    They cost exactly what they cost one by one: composition counts them separately.

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
        return self.count * self.release.rdp(orders)

    def covers(self, planned: Release) -> bool:
        return isinstance(planned, Repeated) and self.count == planned.count and self.release.covers(planned.release)

    @property
    def pure_epsilon(self) -> float:
        return pure_sum([(self.release, self.count)])


@dataclass(frozen=True)
class OneOf(Release):
    """The releases about a record at one of several clients, each with its own training.

    Each alternative has all releases of one client's training. Wherever the record is, the largest one bounds it. Which
    one is largest depends on δ and on what else is composed: `compose` takes the largest ε over all choices. No single
    loss distribution dominates several, so the event itself is composed by RDP.

    >>> from privacy.events import Gaussian
    >>> OneOf((((Gaussian(0.1), 4),), ((Gaussian(0.3), 1),))).rdp([2.0])
    array([0.09])

    Raises:
        ValueError: No alternatives, or one that is made of others.
    """

    kind: ClassVar[str] = "one_of"
    alternatives: tuple[Alternative, ...]

    def __post_init__(self) -> None:
        alternatives = tuple(tuple(_item(item) for item in alternative) for alternative in self.alternatives)
        if not alternatives or not all(alternatives):
            raise ValueError(f"alternatives must be one or more, each of some releases, got {self.alternatives!r}")
        object.__setattr__(self, "alternatives", alternatives)
        pairs = [(release.unit, release.relation) for alternative in alternatives for release, _ in alternative]
        unit, relation = common_neighbours(pairs)
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "relation", relation)

    @classmethod
    def of(cls, trainings: list[Mapping[Release, int]]) -> OneOf:
        """Builds the event from the releases of each training; their order does not matter."""
        alternatives = {tuple(sorted(releases.items(), key=repr)) for releases in trainings}
        return cls(tuple(sorted(alternatives, key=repr)))

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        curves = [
            np.sum([count * release.rdp(orders) for release, count in alternative], axis=0)
            for alternative in self.alternatives
        ]
        largest: NDArray[np.float64] = np.max(curves, axis=0)
        return largest

    @property
    def pure_epsilon(self) -> float:
        return max(pure_sum(alternative) for alternative in self.alternatives)

    def to_dict(self) -> dict[str, Any]:
        plain = [[[release.to_dict(), count] for release, count in alternative] for alternative in self.alternatives]
        return {**super().to_dict(), "alternatives": plain}


def _item(item: Any) -> tuple[Release, int]:
    release, count = item
    event = release_from_dict(release) if isinstance(release, Mapping) else release
    if not isinstance(event, Release) or isinstance(event, OneOf):
        raise ValueError(f"alternatives must be of single releases, got {event!r}")
    return event, check_count("count", count, minimum=1)
