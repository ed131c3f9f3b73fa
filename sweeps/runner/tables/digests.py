"""Follows digests that change where outcomes do not: a setting that is renamed, another version of the digest.

Before the change `LightningCLI tables digests cells.json` notes which records are up to date; after it
`LightningCLI tables migrate cells.json` gives exactly those their current digests. Whether the change really changes no
outcome is for its author to know: nothing here can tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privacy.files import write_atomically
from sweeps.runner.store import Store
from sweeps.runner.tables.cells import Cell
from sweeps.runner.tables.spec import SpecError, TableSpec

__all__ = ["current_digests", "replace_digests"]


def current_digests(results: Path) -> list[dict[str, Any]]:
    """Every cell whose record is of its current configuration.

    Args:
        results: Where the records are.

    Returns:
        For each `table`, `preset`, `cell` (its labels), `seed`, and `fits`: digests of its fit and its parents by name.
    """
    return [
        {
            "table": cell.fit.table,
            "preset": cell.fit.preset,
            "cell": dict(cell.labels),
            "seed": cell.seed,
            "fits": {fit.fit.name: fit.digest for fit in cell.fit.lineage()},
        }
        for path, record, cell in _measured(results)
        if record.get("digest") == cell.fit.digest
    ]


def replace_digests(before: Sequence[Mapping[str, Any]], *, results: Path, store: Store) -> int:
    """Writes the current digests into the records that were up to date, and finds their fits' folders again.

    Args:
        before: What `current_digests` gave before the change.
        results: Where the records are. Those that were out of date, or measured since, stay as they are.
        store: Where the fits lie; folders that are gone are no matter.

    Returns:
        How many records were changed.

    Raises:
        ValueError: A cell that was up to date is no longer in its table, or its record is gone: nothing is written.
    """
    wanted = {_key(entry["table"], entry["preset"], entry["cell"], entry["seed"]): entry["fits"] for entry in before}
    found = {
        _key(cell.fit.table, cell.fit.preset, cell.labels, cell.seed): (path, record, cell)
        for path, record, cell in _measured(results)
    }
    if lost := sorted(set(wanted) - set(found)):
        raise ValueError(f"cells: {len(lost)} of them have no cell and record in {results} any more, first {lost[0]}")
    changed = 0
    for key, fits in wanted.items():
        path, record, cell = found[key]
        for fit in cell.fit.lineage():
            if (digest := fits.get(fit.fit.name)) is not None and digest != fit.digest:
                store.adopt(fit.folder_name, f"{fit.fit.name}-{digest[:16]}", digest=fit.digest)
        if record.get("digest") == fits[cell.fit.fit.name] != cell.fit.digest:
            content = json.dumps({**record, "digest": cell.fit.digest}, indent=2, ensure_ascii=False) + "\n"
            write_atomically(path, content)
            changed += 1
    return changed


def _measured(results: Path) -> Iterable[tuple[Path, dict[str, Any], Cell]]:
    """Records with their cells; tables whose spec is gone are left out."""
    for folder in sorted(results.glob("*/*/records")):
        try:
            spec = TableSpec.read(folder.parts[-3])
        except SpecError:
            continue
        paths = sorted(folder.glob("*.json"))
        records = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
        seeds = sorted({int(record["seed"]) for record in records.values()})
        for cell in spec.cells(folder.parts[-2], seeds=seeds):
            record = records.get(f"{cell.name}.json")
            if record is not None and record["cell"] == dict(cell.labels):
                yield folder / f"{cell.name}.json", record, cell


def _key(table: str, preset: str, labels: Mapping[str, str], seed: int) -> tuple[Any, ...]:
    return (table, preset, tuple(sorted(labels.items())), int(seed))
