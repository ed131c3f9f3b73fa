"""Neighbouring data sets: the unit in which they differ, and how.

An ε is a statement about pairs of data sets. Two statements compose if both hold for the same pairs, or if a lemma
extends one to the pairs of the other. Otherwise composing them raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


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
