"""A table's file of records, one line per cell, and its rows: the records of each grid point and the printed figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from privacy.journal import write_atomically
from sweeps.runner.reported import SELECTING, Reported
from sweeps.runner.spec import OURS, TEACHER, Cell, Spec, names_of_tables

RECORDS = "records.jsonl"
_Key = tuple[tuple[tuple[str, str], ...], int]


@dataclass(frozen=True)
class Row:
    """One point of the grid.

    Attributes:
        labels: Value of each axis.
        records: Records of the seeds that finished, with what any record knows of the fits that they learn from.
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
    found, cells = _read(spec, preset, results)
    versions = tuple((file, file.stat().st_mtime_ns) for file in sorted(results.glob(f"*/*/{RECORDS}")))
    known = _parents_accuracies(versions)
    rows = []
    for labels in dict.fromkeys(labels for labels, _ in cells):
        mine = [record for record in found if record["cell"] == dict(labels)]
        records = [
            {**{name: known[digest] for name, digest in _parents(record, cells).items() if digest in known}, **record}
            for record in mine
            if "error" not in record
        ]
        rows.append(
            Row(
                labels=labels,
                records=records,
                errors=[record["error"] for record in mine if "error" in record],
                reported=_reported(spec, dict(labels)),
                outdated=any(
                    record.get("digest") != cells[labels, int(record["seed"])].task.digest for record in records
                ),
                protocol=spec.preset(preset).protocol(dict(labels)),
            )
        )
    return rows


def _read(spec: Spec, preset: str, results: Path) -> tuple[list[dict[str, Any]], dict[_Key, Cell]]:
    """Reads the records of a preset, and its cells by labels and seed."""
    found = read_records(results / spec.name / preset / RECORDS)
    cells = spec.cells(preset, seeds=sorted({int(record["seed"]) for record in found}) or [0])
    return found, {(tuple(cell.labels.items()), cell.seed): cell for cell in cells}


def _parents(record: Mapping[str, Any], cells: Mapping[_Key, Cell]) -> dict[str, str]:
    """Digests of the fits that a record's learns from, unless it may have learnt from others than today's."""
    cell = cells.get((tuple(record["cell"].items()), int(record["seed"])))
    current = cell is not None and record.get("digest") == cell.task.digest
    return {measure: task.digest for measure, task in cell.parents.items()} if cell and current else {}


@lru_cache(maxsize=1)
def _parents_accuracies(versions: tuple[tuple[Path, int], ...]) -> dict[str, float]:
    """What the records of installed tables say of the fits that they learn from, by the digest of such a fit.

    `versions` are their files, with the time of their last change.
    """
    known: dict[str, float] = {}
    for file, _ in versions:
        preset, name, results = file.parent.name, file.parent.parent.name, file.parent.parent.parent
        if name in names_of_tables() and preset in (spec := Spec.read(name)).presets:
            found, cells = _read(spec, preset, results)
            for record in found:
                parents = _parents(record, cells).items()
                known |= {digest: float(record[measure]) for measure, digest in parents if measure in record}
    return known


def _reported(spec: Spec, labels: Mapping[str, str]) -> Reported | None:
    if not spec.is_printed(labels):
        return None
    wanted = {"method": spec.method or "", **labels}
    found = [row for row in spec.reported() if row.matches(wanted)]
    return found[0] if len(found) == 1 else None
