"""What the papers print, read from `sweeps/reported/*.csv`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import StringIO

__all__ = ["Published", "footnotes", "published"]

FOOTNOTES = "footnotes.csv"


@dataclass(frozen=True)
class Published:
    """One printed figure.

    Attributes:
        paper: The paper's method, or empty for others.
        table: Table or figure, as the paper numbers it; by its content where two versions number it differently.
        dataset: As printed, a misprint included: the footnote says so.
        method: As the paper names it; `Teacher` is the model that is not private.
        setting: What else tells this row from its neighbours.
        epsilon: The paper's ε; None where none is printed or legible.
        unit: What ε is claimed to protect: `record`, `label`, or empty.
        delta: δ; None where none is stated.
        accuracy: Between 0 and 1.
        notes: Keys of `footnotes`.
        source: Where the figure stands.
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

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Published:
        """One line of a file."""
        return cls(
            paper=row["paper"],
            table=row["table"],
            dataset=row["dataset"],
            method=row["method"],
            setting=row["setting"],
            epsilon=float(row["epsilon"]) if row["epsilon"] else None,
            unit=row["unit"],
            delta=float(row["delta"]) if row["delta"] else None,
            accuracy=float(row["accuracy"]),
            notes=tuple(row["footnote"].split()),
            source=row["source"],
        )

    def matches(self, wanted: Mapping[str, str]) -> bool:
        """Whether `dataset`, `method`, `setting`, `unit` and `epsilon` are as wanted, those that are named."""
        for name, value in wanted.items():
            if name == "epsilon":
                if self.epsilon is None or self.epsilon != float(value):
                    return False
            elif name in ("dataset", "method", "setting", "unit") and getattr(self, name) != value:
                return False
        return True


@cache
def published() -> tuple[Published, ...]:
    """Every printed figure."""
    return tuple(
        Published.from_row(row)
        for name in sorted(file.name for file in _folder().iterdir() if file.name.endswith(".csv"))
        if name != FOOTNOTES
        for row in _rows(name)
    )


@cache
def footnotes() -> dict[str, str]:
    """Texts by key."""
    return {row["footnote"]: row["text"] for row in _rows(FOOTNOTES)}


def _folder() -> resources.abc.Traversable:
    return resources.files("sweeps").joinpath("reported")


def _rows(name: str) -> list[dict[str, str]]:
    text = _folder().joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(StringIO(text)))
