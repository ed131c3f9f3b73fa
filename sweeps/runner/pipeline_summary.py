"""What a pipeline has made, as a table with the meaning of its figures."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lightning_modules.callbacks.record import role
from lightning_modules.runtime.figures import comparison, save_figure
from privacy.formatting import short_figure

__all__ = ["summary"]

MEANING = """\
ε published   what the paper's own theorem gives: the figure its tables are indexed by. A claim; it bounds no record.
ε record      an upper bound that holds for every single record the teacher was trained on, at the same δ.
              In the hundreds or above it protects nobody: then treat the student like the teacher itself.
A teacher that was trained without differential privacy has no bound at all (inf)."""


def summary(folders: Mapping[str, Path], *, compare: str | None = None, folder: Path) -> str:
    """The table, what its columns mean, and where figures and guarantees lie.

    Args:
        folders: Folder of each fit.
        compare: Title of a figure with the curves of all students, written to `folder`; None for no figure.
        folder: The pipeline's folder.
    """
    records = {name: record for name, place in folders.items() if (record := _record(place)) is not None}
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("fit", "what", "data", "test accuracy", "ε published", "ε record", "δ", "teacher queries"):
        table.add_column(heading, justify="left" if heading in ("fit", "what", "data") else "right")
    for name, record in records.items():
        table.add_row(
            name,
            role(record),
            record["dataset"],
            f"{100 * record['accuracy']:.2f} %",
            _figure(record["epsilon_published"]) if record.get("published_claim") else "-",
            _bound(record["epsilon_record"]),
            f"{record['delta']:g}" if record["delta"] else "-",
            f"{record['queries']:,}" if "queries" in record else "-",
        )
    stream = io.StringIO()
    console = Console(file=stream, width=118)
    console.print(table)
    lines = [stream.getvalue().rstrip(), "", MEANING, ""]
    histories = {name: record["curve"] for name, record in records.items() if record.get("curve")}
    if compare is not None and histories:
        pictures = {
            name: grids[-1]
            for name in histories
            if (grids := sorted(folders[name].glob("*/figures/synthetic_*.png"), key=lambda path: path.name))
        }
        figure = comparison(histories, dict(list(pictures.items())[:2]), title=compare)
        lines.append(f"{'all':<13} figure {save_figure(figure, folder / 'figure.png')}")
    for name, place in folders.items():
        if (page := place / "public" / "guarantee.md").is_file():
            lines.append(f"{name:<13} guarantee {page}; what it covers lies beside it")
    return "\n".join(lines)


def _record(place: Path) -> dict[str, Any] | None:
    path = place / "result.json"
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _bound(value: float | str) -> str:
    return value if isinstance(value, str) else short_figure(value)


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
