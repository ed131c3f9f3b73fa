"""The records of a table's cells: what is missing is measured, and what is measured is copied to `results/`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privacy.files import write_atomically
from sweeps.runner.engines import Engine
from sweeps.runner.plan import Plan, Progress
from sweeps.runner.run_plan import run_plan
from sweeps.runner.store import Store
from sweeps.runner.tables.cells import Cell
from sweeps.runner.tables.spec import TableSpec

__all__ = ["collect", "plan_of", "records_by_digest", "run_table", "share_records"]

TEACHER = "teacher_accuracy"
"""One of `MEASURES`: a record is without it unless its fit has looked at the teacher."""


def plan_of(cells: Sequence[Cell], store: Store, *, title: str = "") -> Plan:
    """The fits of some cells, each once however many cells need it; folders of version 1 are found again."""
    fits = {fit.folder_name: fit for cell in cells for fit in cell.fit.lineage()}
    for name, fit in fits.items():
        store.adopt(name, fit.former_folder_name, digest=fit.digest)
    return Plan([fit.task() for cell in cells for fit in cell.fit.lineage()], store, title=title)


def run_table(
    spec: TableSpec,
    *,
    preset: str,
    run: Callable[[list[str]], Any],
    folder: str | Path = "runs/tables",
    results: str | Path = "results/tables",
    seeds: Sequence[int] | None = None,
    engine: Engine | None = None,
    say: Callable[[str], None] = print,
) -> Progress:
    """Runs what is missing of a table and copies the records of its cells.

    Args:
        spec: The table.
        preset: Its size.
        run: Takes the arguments of one `fit` command; used where there is no engine.
        folder: Where fits lie, shared by all tables.
        results: Where records are copied to.
        seeds: In place of the preset's.
        engine: What runs the fits; None is this process.
        say: Takes lines for a person.
    """
    cells = spec.cells(preset, seeds=seeds)
    plan = plan_of(cells, Store(folder), title=f"{spec.name} {preset}")
    progress = run_plan(plan, run, since=time.time(), engine=engine, say=say)
    collect(spec, cells, plan, preset=preset, results=Path(results))
    return progress


def collect(
    spec: TableSpec, cells: Sequence[Cell], plan: Plan, *, preset: str, results: Path, since: float = 0.0
) -> None:
    """Copies the record of each finished cell to `results/<table>/<preset>/records`, with where it belongs.

    Args:
        spec: The table.
        cells: Cells of it.
        plan: Their fits.
        preset: The size.
        results: Where records go.
        since: Failures before this time are left out.
    """
    for cell in cells:
        name = cell.fit.folder_name
        path = results / spec.name / preset / "records" / f"{cell.name}.json"
        if plan.current(plan.tasks[name]) is None:
            if (error := plan.store.failure(name, since=since)) is not None:
                # An earlier figure of a cell that now fails is not this cell's.
                stale = {"table": spec.name, "preset": preset, "cell": dict(cell.labels), "error": error}
                write_atomically(path, json.dumps({**stale, "seed": cell.seed}, indent=2, ensure_ascii=False) + "\n")
            continue
        record = _result(plan, name)
        parent = cell.fit.parents.get("teacher")
        if TEACHER in spec.measures and TEACHER not in record and parent is not None:
            # As its own fit has measured it: the student's needs no look at its teacher for it.
            record[TEACHER] = _result(plan, parent.folder_name)["accuracy"]
        _write(path, record, spec=spec, preset=preset, cell=cell)


def _result(plan: Plan, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((plan.store.folder(name) / "result.json").read_text(encoding="utf-8"))
    return found


def _write(path: Path, record: Mapping[str, Any], *, spec: TableSpec, preset: str, cell: Cell) -> None:
    place = {"table": spec.name, "preset": preset, "cell": dict(cell.labels), "digest": cell.fit.digest}
    # First, and not what the record of another table says of its own place.
    write_atomically(path, json.dumps({**place, **record, **place}, indent=2, ensure_ascii=False) + "\n")


def records_by_digest(results: Path) -> dict[str, dict[str, Any]]:
    """The records of all tables that hold a figure, by the digest of what was measured.

    Args:
        results: Where the records are.
    """
    found = {}
    for path in sorted(results.glob("*/*/records/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "digest" in record and "error" not in record:
            found[str(record["digest"])] = record
    return found


def share_records(
    spec: TableSpec, cells: Sequence[Cell], records: Mapping[str, Mapping[str, Any]], *, preset: str, results: Path
) -> int:
    """Gives a table those of its cells that another table has measured.

    Args:
        spec: The table.
        cells: Cells of it.
        records: See `records_by_digest`.
        preset: The size.
        results: Where records go.

    Returns:
        How many were new.
    """
    new = 0
    for cell in cells:
        record = records.get(cell.fit.digest)
        path = results / spec.name / preset / "records" / f"{cell.name}.json"
        if record is None:
            continue
        if path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("digest") == cell.fit.digest:
            continue
        _write(path, record, spec=spec, preset=preset, cell=cell)
        new += 1
    return new
