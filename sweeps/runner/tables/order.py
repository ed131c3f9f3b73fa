"""The order in which all tables are measured: by value, and breadth first over seeds."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from sweeps.runner.tables.cells import Cell
from sweeps.runner.tables.spec import TableSpec

__all__ = ["Turn", "by_value", "in_order", "without_measured"]


@dataclass(frozen=True)
class Turn:
    """The cells of one table and one of its seeds.

    Attributes:
        spec: The table.
        number: Which of the table's seeds, from 0.
        seed: That seed.
        cells: The cells.
    """

    spec: TableSpec
    number: int
    seed: int
    cells: Sequence[Cell]


def by_value(specs: Sequence[TableSpec]) -> list[TableSpec]:
    """Tables of a higher `value` first, those without one last; equal ones as they were given."""
    return sorted(specs, key=lambda spec: (spec.value is None, -(spec.value or 0.0)))


def in_order(specs: Sequence[TableSpec], *, preset: str, seeds: Sequence[int] | None = None) -> list[Turn]:
    """The first seed of every table by value, then the second seed of every table that has one, and so on.

    Whoever is interrupted has a figure in as many tables as possible, rather than every seed of a few.

    Args:
        specs: The tables.
        preset: Their size.
        seeds: In place of the preset's.
    """
    turns = []
    for spec in by_value(specs):
        cells = spec.cells(preset, seeds=seeds)
        for number, seed in enumerate(dict.fromkeys(cell.seed for cell in cells)):
            turns.append(Turn(spec, number, seed, [cell for cell in cells if cell.seed == seed]))
    return sorted(turns, key=lambda turn: turn.number)


def without_measured(turns: Sequence[Turn], records: Container[str]) -> list[Turn]:
    """Leaves out what has a record of its current configuration, also where its fits were made elsewhere or are gone.

    Args:
        turns: What is to be measured.
        records: Digests of what was measured, of any table: see `records_by_digest`.
    """
    left = [replace(turn, cells=[cell for cell in turn.cells if cell.fit.digest not in records]) for turn in turns]
    return [turn for turn in left if turn.cells]
