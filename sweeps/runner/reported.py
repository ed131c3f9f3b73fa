"""Figures printed in the papers, read from `sweeps/reported/*.csv`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

FOOTNOTES = "footnotes.csv"
_FOLDER = resources.files("sweeps").joinpath("reported")
NUMBERS = ("epsilon", "delta", "accuracy")
SELECTING = ("method", "dataset", "setting", "unit", "epsilon")
"""Axes of a table whose values select a printed figure."""


@dataclass(frozen=True)
class Reported:
    """One printed figure.

    Attributes:
        paper: Name of the paper's method; empty for other papers.
        table: Table or figure as numbered in the paper; named by its content if versions number it differently.
        dataset: Data set as printed, including misprints, which a footnote points out.
        method: Method as named in the paper; `Teacher` is the model without privacy.
        setting: Anything else that distinguishes this row from its neighbours.
        epsilon: The paper's ε; None if not printed or not legible.
        unit: What ε is claimed to protect: `record`, `label`, or empty.
        delta: δ; None if not stated.
        accuracy: Between 0 and 1.
        notes: Keys of `footnotes`.
        source: Where the figure is printed.
    """

    paper: str
    table: str
    dataset: str
    method: str
    setting: str
    epsilon: float | None
    unit: str
    delta: float | None
    accuracy: float
    notes: tuple[str, ...]
    source: str

    def named(self, paper: str) -> tuple[str, ...]:
        """Names of its table: by paper and table, and in its own `paper` the table alone."""
        return f"{self.paper} {self.table}", *((self.table,) if self.paper == paper else ())

    def matches(self, wanted: Mapping[str, str]) -> bool:
        """Whether `dataset`, `method`, `setting`, `unit` and `epsilon` equal the wanted ones, if given."""
        if "epsilon" in wanted and (self.epsilon is None or self.epsilon != float(wanted["epsilon"])):
            return False
        named = wanted.keys() & {*SELECTING} - {"epsilon"}
        return all(getattr(self, name) == wanted[name] for name in named)


@cache
def reported() -> tuple[Reported, ...]:
    """Reads all printed figures."""
    names = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".csv"))
    return tuple(_reported(row) for name in names if name != FOOTNOTES for row in _rows(name))


@cache
def footnotes() -> dict[str, str]:
    """Reads the footnotes' texts by key."""
    return {row["footnote"]: row["text"] for row in _rows(FOOTNOTES)}


def _reported(row: dict[str, str]) -> Reported:
    notes = tuple(row.pop("footnote").split())
    numbers: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in NUMBERS}
    return Reported(**{**row, **numbers}, notes=notes)


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_FOLDER.joinpath(name).read_text(encoding="utf-8").splitlines()))
