"""The cost of one access to private data, as frozen values that can be counted, stored and composed.

A `Release` is the privacy cost of **one** release under record-level neighbours (one record arbitrarily different,
which changes one teacher arbitrarily), or under the unit and relation that it names. A ledger maps releases to how
often each happened; every ε is a pure function of it (`privacy.accounting.composition`). A release knows its Renyi
curve, to compose with anything else, and the μ of an exactly equivalent Gaussian mechanism if there is one.

An ε is a statement about pairs of data sets, which differ in one unit in some way. Two statements compose if both hold
for the same pairs, or if a lemma extends one to the pairs of the other (`common_neighbours`). Otherwise composing them
raises.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_number, registered
from privacy.numerics import pld


class IncompatibleNeighbours(ValueError):
    """Events whose units or neighbouring relations no lemma of this project composes."""


class Unit(str, Enum):
    """What one neighbouring change touches."""

    RECORD = "record"
    LABEL = "label"
    CLIENT = "client"
    PERSON = "person"


class Relation(str, Enum):
    """How two neighbouring data sets differ in one unit.

    `ANY_CHANGE` is the strongest: the unit may be blanked out, replaced, added or removed. Bounds on queries of a
    private model are of this kind, since all that they use is that one model may become any other.
    """

    ANY_CHANGE = "any change"
    ADD_OR_REMOVE = "add or remove"
    REPLACE_ONE = "replace one"
    ZERO_OUT = "zero out"


def common_neighbours(events: Iterable[tuple[Unit, Relation]]) -> tuple[Unit, Relation]:
    """Unit and relation for which a composition of `events` holds.

    Three lemmas, each because the pairs of one statement are some of the other's:

    - A bound for any change of a unit holds for each single kind of change: events under `ANY_CHANGE` compose with
      events under one other relation, as events under that one.
    - Replacing a label replaces its record by one that differs only in the label: events about records under
      `ANY_CHANGE` or `REPLACE_ONE` compose with events about labels, as events about labels.
    - A client whose data lose, gain or change a record is a client whose data were replaced: events about clients under
      `ANY_CHANGE` or `REPLACE_ONE` compose with events about records or labels, as events about any change of a record.

    Nothing else is composed. Add-or-remove extends to replace-one only by group privacy, which changes ε. The same goes
    for extending add-or-remove of a person to one record of a person who stays, whose clipped gradient moves by up to
    two norms.

    Args:
        events: Unit and relation of each event; without events, any change of a record.

    Raises:
        IncompatibleNeighbours: Units or relations that no lemma composes.

    >>> unit, relation = common_neighbours([(Unit.RECORD, Relation.ANY_CHANGE), (Unit.RECORD, Relation.ADD_OR_REMOVE)])
    >>> unit.value, relation.value
    ('record', 'add or remove')
    """
    pairs = set(events)
    units = {unit for unit, _ in pairs} or {Unit.RECORD}
    replaced = {(Unit.CLIENT, Relation.ANY_CHANGE), (Unit.CLIENT, Relation.REPLACE_ONE)}
    if units > {Unit.CLIENT}:
        pairs = {(Unit.RECORD, Relation.ANY_CHANGE) if pair in replaced else pair for pair in pairs}
        units = {unit for unit, _ in pairs}
    if units == {Unit.RECORD, Unit.LABEL}:
        units = {Unit.LABEL}
        pairs |= {(Unit.LABEL, Relation.REPLACE_ONE)}
    if len(units) > 1:
        names = ", ".join(sorted(unit.value for unit in units))
        raise IncompatibleNeighbours(f"events must be about one unit to be composed, got units {names}")
    single = {relation for _, relation in pairs} - {Relation.ANY_CHANGE}
    if len(single) > 1:
        names = ", ".join(sorted(relation.value for relation in single))
        raise IncompatibleNeighbours(
            f"events must be under one neighbouring relation (or hold for any change) to be composed, got {names}"
        )
    return units.pop(), single.pop() if single else Relation.ANY_CHANGE


def shared_neighbours(releases: Iterable[Release]) -> tuple[Unit, Relation] | None:
    """Unit and relation for which releases compose; None if they do not."""
    try:
        return common_neighbours((release.unit, release.relation) for release in releases)
    except IncompatibleNeighbours:
        return None


_REGISTRY: dict[str, type[Release]] = {}
_ENUMS: dict[str, type[Unit | Relation]] = {"unit": Unit, "relation": Relation}

LARGEST_DIVERGENCE = 1e15
"""Beyond it squares and sums of losses overflow: whoever may choose a mechanism must not make a ledger unreadable."""


@dataclass(frozen=True)
class Release:
    """The privacy cost of one release. Subclasses are frozen, hashable and registered by their `kind`.

    Attributes:
        unit: What one neighbouring change touches.
        relation: How two neighbouring data sets differ in it.
    """

    kind: ClassVar[str]
    unit: Unit = field(default=Unit.RECORD, kw_only=True, repr=False)
    relation: Relation = field(default=Relation.ANY_CHANGE, kw_only=True, repr=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind in _REGISTRY:
            raise ValueError(f"kind must be unique among releases, got {cls.kind!r} twice")
        _REGISTRY[cls.kind] = cls

    def __post_init__(self) -> None:
        """Refuses numbers below 0, and sample rates above 1; scales may be infinite."""
        for name in (one.name for one in dataclasses.fields(self) if one.type in ("float", float)):
            rate = name == "sample_rate"
            checked = check_number(name, getattr(self, name), least=0, most=1 if rate else math.inf, infinite=not rate)
            object.__setattr__(self, name, checked)

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Upper bound on the Renyi divergence, both directions, at each order above 1; shape of `orders`.

        Infinite, unless a release knows better: nothing bounds it then.
        """
        return np.full_like(checked_orders(orders), np.inf)

    @property
    def gaussian_mu(self) -> float | None:
        """μ of a Gaussian mechanism that this release equals or is dominated by; None without one."""
        return None

    @property
    def bounded(self) -> bool:
        """False if no ε covers this release that says anything, or can be computed: not even its Rényi divergence."""
        with np.errstate(all="ignore"):
            return bool(self.rdp(2.0) <= LARGEST_DIVERGENCE)

    @property
    def for_labels(self) -> Release | None:
        """Cost of this release if neighbours differ in the label of one record; None if no lemma gives it.

        Replacing a label replaces its record by one that differs only in the label, so a bound for any change, or for
        the replacement, of a record holds for its label (`common_neighbours`).
        """
        about_labels = self.unit in (Unit.LABEL, Unit.RECORD)
        return self if about_labels and self.relation in (Relation.ANY_CHANGE, Relation.REPLACE_ONE) else None

    @property
    def pure_epsilon(self) -> float:
        """ε at δ = 0, or inf: N releases never cost more than N times this."""
        return math.inf

    @property
    def lattice(self) -> float | None:
        """Spacing of a grid on which all finite losses lie exactly; None for continuous losses."""
        return None

    @property
    def loss_std(self) -> float:
        """Rough standard deviation of the privacy loss, if that is known; it chooses grids and never enters a bound."""
        return 1.0

    @property
    def loss_reach(self) -> float:
        """Rough width of the support of the privacy loss, which chooses grids and never enters a bound."""
        return self.loss_std * (24.0 + self.loss_std)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        """Loss distributions on a grid for removing and adding the record (the same object twice if they are equal).

        If none is known, the trivial one, an infinite loss. Composition asks only releases that reveal something and
        equal no Gaussian mechanism.
        """
        loss = pld.LossDistribution(interval, 0, np.zeros(1), 1.0)
        return loss, loss

    def covers(self, planned: Release) -> bool:
        """Whether this release uses up a planned one: the same, or a cheaper one that the plan left open.

        Anything chosen after the first release, such as other noise, was not planned.
        """
        return self == planned

    def about(self, unit: Unit, relation: Relation) -> Release:
        """The same cost for other neighbours; the caller must have proved that it holds for them."""
        return dataclasses.replace(self, unit=unit, relation=relation)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `release_from_dict` is the inverse. Infinite numbers become the string "inf"."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"kind": self.kind, **fields}


def pure_sum(items: Iterable[tuple[Release, int]]) -> float:
    """Sum of the pure ε of releases, each as often as its count, rounded up."""
    parts = [(count, release.pure_epsilon) for release, count in items]
    rounded = math.fsum(count * epsilon for count, epsilon in parts)
    return rounded if math.isinf(rounded) else rounded_up(rounded, sum(count * Fraction(one) for count, one in parts))


def rounded_up(value: float, exact: Fraction | int) -> float:
    """A number that was computed in floats, unless it lies below the exact one: then the next above that.

    At a tiny δ a pure ε exceeds the smallest one by less than floats resolve: rounded to the nearest, it is no bound.
    """
    return value if value >= exact else math.nextafter(float(exact), math.inf)


def release_from_dict(data: Mapping[str, Any]) -> Release:
    """Rebuilds a release from `to_dict`.

    Raises:
        ValueError: The kind is unknown or the fields do not fit it.

    >>> release_from_dict({"kind": "gaussian", "mu": 0.5, "unit": "record", "relation": "any change"})
    Gaussian(mu=0.5)
    """
    cls, values = registered(_REGISTRY, data)
    return cls(**{name: _from_plain(value, name) for name, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Release):
        return value.to_dict()
    if isinstance(value, Unit | Relation):
        return value.value
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _from_plain(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return release_from_dict(value)
    if name in _ENUMS:
        return _ENUMS[name](value)
    return math.inf if value == "inf" else value


def checked_orders(orders: ArrayLike) -> NDArray[np.float64]:
    """Renyi orders as float64, each above 1.

    Raises:
        ValueError: An order is 1 or less.
    """
    array = np.asarray(orders, dtype=np.float64)
    if not np.all(array > 1.0):
        raise ValueError(f"orders must all be above 1, got {orders!r}")
    return array


@dataclass(frozen=True)
class Unbounded(Release):
    """A release that nothing bounds; `reason` is printed wherever the resulting `inf` is shown."""

    kind: ClassVar[str] = "unbounded"
    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"reason must say in words why nothing bounds the release, got {self.reason!r}")


@dataclass(frozen=True)
class LabelOnly(Release):
    """Something computed from raw private images, and from their labels only through `release`.

    In direct training on private records (DPDFD, Algorithm 3) the label enters through a noisy gradient of the outputs,
    which the update then multiplies by a Jacobian of the image. Nothing bounds a record. For its label `release` is the
    whole cost, against an adversary who knows every image: see `for_labels`. One event states both, so that no ledger
    can hold the finite figure without the infinite one.

    >>> from privacy.events import RevealedGaussian
    >>> LabelOnly(RevealedGaussian(1.0, 0.01)).bounded
    False

    Raises:
        ValueError: `release` is not stated for replacing a label.
    """

    kind: ClassVar[str] = "label_only"
    reason: ClassVar[str] = "private images were used without noise: only what is released about their labels is noised"
    release: Release

    def __post_init__(self) -> None:
        release = self.release
        if not isinstance(release, Release) or (release.unit, release.relation) != (Unit.LABEL, Relation.REPLACE_ONE):
            raise ValueError(f"release must be stated for replacing the label of one record, got {release!r}")

    @property
    def for_labels(self) -> Release:
        return self.release

    def covers(self, planned: Release) -> bool:
        return isinstance(planned, LabelOnly) and self.release.covers(planned.release)
