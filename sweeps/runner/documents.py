"""Tables in documents, rendered from the records in `results/`: nobody types a figure.

A document holds a block such as

    <!-- results: demo_teacher demo_prior -->
    <!-- end results -->

whose inside `LightningCLI render README.md` writes, and `LightningCLI render --check README.md` compares.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from lightning_modules.callbacks.record import role
from privacy.files import write_atomically
from privacy.formatting import short_figure
from sweeps.runner.guarantee_tables import methods_table, papers_table

_COMPUTED = re.compile(
    r"(?P<head><!-- privacy: (?P<name>\w+) -->\n)(?P<body>.*?)(?P<tail><!-- end privacy -->)", re.DOTALL
)
_TABLES = {"methods": methods_table, "papers": papers_table}

__all__ = ["DocumentError", "render", "render_text", "results_table"]

_BLOCK = re.compile(
    r"(?P<head><!-- results: (?P<names>[\w ]+) -->\n)(?P<body>.*?)(?P<tail><!-- end results -->)", re.DOTALL
)


class DocumentError(ValueError):
    """A document that names a record which does not exist."""


def results_table(names: Sequence[str], folder: Path) -> str:
    """A Markdown table of records, one row each, with the provenance they share below it.

    Args:
        names: File names under `folder` without `.json`.
        folder: Where the records are.

    Raises:
        DocumentError: A record is missing.
    """
    records = {name: _read(folder / f"{name}.json") for name in names}
    lines = [
        "| run | what | data | test accuracy | ε published (claim) | ε record-level (bound) | steps | seconds |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, record in records.items():
        accuracy = f"{100 * record['accuracy']:.2f} %"
        lines.append(
            f"| `{name}` | {role(record)} | {record['dataset']} | {accuracy} | "
            f"{_figure(record['epsilon_published']) if record.get('published_claim') else '–'} | "
            f"{_bound(record['epsilon_record'])} | "
            f"{record['steps']:,} | {record['wall_seconds']:.0f} |"
        )
    shared = sorted({f"{record['hardware']}, torch {record['versions']['torch']}" for record in records.values()})
    seeds = sorted({record["seed"] for record in records.values()})
    deltas = sorted({record["delta"] for record in records.values() if record["delta"]})
    commits = sorted({record["commit"] for record in records.values()})
    lines += [
        "",
        f"Last step, no selection. δ = {', '.join(f'{delta:g}' for delta in deltas) or '–'}; unit: one training "
        f"record; seed {', '.join(map(str, seeds))}; {'; '.join(shared)}; commit {', '.join(commits)}. "
        f"Records: `results/`.",
        "",
    ]
    return "\n".join(lines)


def render_text(text: str, folder: Path) -> str:
    """`text` with every results block and every computed privacy table written anew."""
    text = _COMPUTED.sub(lambda block: block["head"] + _TABLES[block["name"]]() + block["tail"], text)
    return _BLOCK.sub(lambda block: block["head"] + results_table(block["names"].split(), folder) + block["tail"], text)


def render(args: Sequence[str]) -> None:
    """The command `render FILE... [--check]`."""
    parser = ArgumentParser(
        prog="LightningCLI render",
        allow_abbrev=False,
        description="Write the results blocks of documents from results/.",
    )
    parser.add_argument("files", type=str, nargs="+", help="Documents.")
    parser.add_argument("--results", type=str, default="results", help="Folder of the records.")
    parser.add_argument("--check", action="store_true", help="Change nothing; fail where a document is out of date.")
    options = parser.parse_args(list(args))
    stale = []
    for name in options.files:
        file = Path(name)
        text = file.read_text(encoding="utf-8")
        new = render_text(text, Path(options.results))
        if new != text:
            stale.append(name)
            if not options.check:
                write_atomically(file, new)
    if options.check and stale:
        sys.exit(f"error: not as results/ has it, run `LightningCLI render {' '.join(stale)}`")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DocumentError(f"a document names the record {path}, which does not exist")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _bound(value: float | str) -> str:
    return value if isinstance(value, str) else short_figure(value)


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
