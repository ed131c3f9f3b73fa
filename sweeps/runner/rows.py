"""A table's file of records, one line per cell, and its rows: the records of each grid point and the printed figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from privacy.journal import write_atomically
from sweeps.runner.reported import SELECTING, Reported
from sweeps.runner.spec import OURS, TEACHER, Spec

RECORDS = "records.jsonl"


@dataclass(frozen=True)
class Row:
    """One point of the grid.

    Attributes:
        labels: Value of each axis.
        records: Records of the seeds that finished.
        errors: Errors of the seeds that failed.
        reported: The paper's figure, if there is one.
        outdated: Whether the configuration has changed since a record was made.
        protocol: One of `PROTOCOLS`.
    """

    labels: tuple[tuple[str, str], ...]
    records: Sequence[Mapping[str, Any]]
    errors: Sequence[str]
    reported: Reported | None
    outdated: bool = False
    protocol: str = OURS

    @property
    def free(self) -> str:
        """The labels that select no printed figure, such as where images come from."""
        return ", ".join(value for axis, value in self.labels if axis not in SELECTING)

    @property
    def drop(self) -> float | None:
        """The teacher's accuracy minus the student's, means over seeds; None if a record lacks the teacher's."""
        teachers = self.values(TEACHER)
        return fmean(teachers) - fmean(self.values("accuracy")) if teachers else None

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


def read_records(file: Path) -> list[dict[str, Any]]:
    """Reads the records of one preset of a table, `TABLE/PRESET/records.jsonl`; none if it was not measured."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_records(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Adds records to a file, which is sorted by cell and seed; a cell's record replaces its earlier one."""
    kept = {(*record["cell"].values(), record["seed"]): record for record in (*read_records(file), *records)}
    lines = (json.dumps(kept[key], ensure_ascii=False) for key in sorted(kept))
    write_atomically(file, "".join(f"{line}\n" for line in lines))


def read_rows(spec: Spec, preset: str, results: Path) -> list[Row]:
    """Reads the grid of a preset, in order, with the records in `results` of each point."""
    found = read_records(results / spec.name / preset / RECORDS)
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
                reported=spec.printed(dict(labels)),
                outdated=any(record.get("digest") != digests[labels, int(record["seed"])] for record in records),
                protocol=spec.presets[preset].protocol(dict(labels)),
            )
        )
    return rows
