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


@dataclass(frozen=True)
class Reported:
    """One printed figure.

    Attributes:
        paper: The paper's method, or empty for others.
        table: Table or figure, as the paper numbers it; by its content where two versions number it differently.
        dataset: As printed, a misprint included: the footnote says so.
        method: As the paper names it; `Teacher` is the model that is not private.
        setting: What else distinguishes this row from its neighbours.
        epsilon: The paper's ε; None where none is printed or legible.
        unit: What ε is claimed to protect: `record`, `label`, or empty.
        delta: δ; None where none is stated.
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

    def matches(self, wanted: Mapping[str, str]) -> bool:
        """Whether `dataset`, `method`, `setting`, `unit` and `epsilon` match those that are wanted."""
        if "epsilon" in wanted and (self.epsilon is None or self.epsilon != float(wanted["epsilon"])):
            return False
        named = wanted.keys() & {"dataset", "method", "setting", "unit"}
        return all(getattr(self, name) == wanted[name] for name in named)


@cache
def reported() -> tuple[Reported, ...]:
    """Every printed figure."""
    names = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".csv"))
    return tuple(_figure(row) for name in names if name != FOOTNOTES for row in _rows(name))


@cache
def footnotes() -> dict[str, str]:
    """Texts by key."""
    return {row["footnote"]: row["text"] for row in _rows(FOOTNOTES)}


def _figure(row: dict[str, str]) -> Reported:
    notes = tuple(row.pop("footnote").split())
    numbers: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in NUMBERS}
    return Reported(**{**row, **numbers}, notes=notes)


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_FOLDER.joinpath(name).read_text(encoding="utf-8").splitlines()))
