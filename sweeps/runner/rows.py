"""Rows of a table: the records of each grid point and the printed figure for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sweeps.runner.reported import Reported
from sweeps.runner.spec import Spec


@dataclass(frozen=True)
class Row:
    """One point of the grid.

    Attributes:
        labels: Value of each axis.
        records: Records of the seeds that finished.
        errors: Errors of the seeds that failed.
        reported: The paper's figure, if there is one.
        outdated: Whether the configuration has changed since a record was made.
    """

    labels: tuple[tuple[str, str], ...]
    records: Sequence[Mapping[str, Any]]
    errors: Sequence[str]
    reported: Reported | None
    outdated: bool = False

    @property
    def mean(self) -> float | None:
        """Mean accuracy over seeds."""
        accuracies = self.values("accuracy")
        return fmean(accuracies) if accuracies else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than three, which are shown individually."""
        return stdev(self.values("accuracy")) if len(self.records) > 2 else None

    def values(self, name: str) -> list[float]:
        """Values of a measure over seeds, such as test accuracy; empty if a record lacks it."""
        found = [record.get(name) for record in self.records]
        return [] if None in found else [float(str(value)) for value in found]

    def largest(self, name: str) -> float | None:
        """Largest value of a measure over seeds, or None. An infinite published ε is no claim and does not count."""
        found = [float(record[name]) for record in self.records if record.get(name) is not None]
        return max((value for value in found if value < math.inf or name != "epsilon_published"), default=None)


def read_rows(spec: Spec, preset: str, results: Path) -> list[Row]:
    """Read the grid of a preset, in order, with the records in `results` of each point."""
    paths = sorted((results / spec.name / preset / "records").glob("*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    cells = spec.cells(preset, seeds=sorted({int(record["seed"]) for record in found}) or [0])
    digests = {(tuple(cell.labels.items()), cell.seed): cell.task.digest for cell in cells}
    rows = []
    for labels in dict.fromkeys(labels for labels, _ in digests):
        mine = [record for record in found if record["cell"] == dict(labels)]
        records = [record for record in mine if "error" not in record]
        rows.append(
            Row(
                labels=labels,
                records=records,
                errors=[record["error"] for record in mine if "error" in record],
                reported=_reported(spec, dict(labels)),
                outdated=any(record.get("digest") != digests[labels, int(record["seed"])] for record in records),
            )
        )
    return rows


def _reported(spec: Spec, labels: Mapping[str, str]) -> Reported | None:
    if not spec.is_printed(labels):
        return None
    wanted = {"method": spec.method or "", **labels}
    found = [row for row in spec.reported() if row.matches(wanted)]
    return found[0] if len(found) == 1 else None
