"""The rows of a table: the records of each point of its grid, and the printed figure beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lightning_modules.evaluation import TEST_SPLIT
from sweeps.runner.tables.published import Published, published
from sweeps.runner.tables.spec import TableSpec

__all__ = ["Row", "read_rows"]

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Row:
    """One point of the grid.

    Attributes:
        labels: Value of each axis.
        records: Those of its seeds that finished.
        errors: Why others did not.
        printed: The paper's figure for it, if there is one.
        selection: Which step's accuracy counts, see `TableSpec`.
        outdated: Whether a record is of a configuration that has changed since.
    """

    labels: Labels
    records: Sequence[Mapping[str, Any]]
    errors: Sequence[str]
    printed: Published | None
    selection: str
    outdated: bool = False

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy of each seed, between 0 and 1."""
        if self.selection == "last":
            return [float(record["accuracy"]) for record in self.records]
        return [max(float(record["accuracy"]), *_test_curve(record), 0.0) for record in self.records]

    @property
    def mean(self) -> float | None:
        """Mean accuracy over seeds."""
        return fmean(self.accuracies) if self.records else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds, from two seeds on."""
        return stdev(self.accuracies) if len(self.records) > 1 else None

    def mean_of(self, name: str) -> float | None:
        """Mean over seeds of another figure; None where a record is without it."""
        values = [record.get(name) for record in self.records]
        return fmean(float(value) for value in values if value is not None) if values and None not in values else None

    def largest(self, name: str) -> float | None:
        """Largest value of a figure over seeds; infinite where any is."""
        values = [float(record[name]) for record in self.records if record.get(name) is not None]
        return max(values) if values else None


def read_rows(spec: TableSpec, preset: str, folder: Path) -> list[Row]:
    """The grid of the preset, in order, with every record in `folder` that belongs to one of its points."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    seeds = sorted({int(record["seed"]) for record in found})
    digests = {
        (tuple(cell.labels.items()), cell.seed): cell.fit.digest for cell in spec.cells(preset, seeds=seeds or [0])
    }
    rows = []
    for labels in dict.fromkeys(labels for labels, _ in digests):
        mine = [record for record in found if record["cell"] == dict(labels)]
        records = [record for record in mine if "error" not in record]
        rows.append(
            Row(
                labels=labels,
                records=records,
                errors=[record["error"] for record in mine if "error" in record],
                printed=_printed(spec, dict(labels)),
                selection=spec.selection,
                outdated=any(record.get("digest") != digests[labels, int(record["seed"])] for record in records),
            )
        )
    return rows


def _printed(spec: TableSpec, labels: Mapping[str, str]) -> Published | None:
    if not spec.is_printed(labels):
        return None
    wanted = {"method": spec.method or "", **labels}
    found = [row for row in published() if row.paper == spec.paper and row.table == spec.table and row.matches(wanted)]
    return found[0] if len(found) == 1 else None


def _test_curve(record: Mapping[str, Any]) -> list[float]:
    """Accuracy on the test split over the steps; none where a fit was validated on a half that it kept apart."""
    of_test = record.get("curve_metric", TEST_SPLIT) == TEST_SPLIT
    return [float(point["accuracy"]) for point in record.get("curve", [])] if of_test else []
