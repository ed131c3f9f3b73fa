"""Renders tables in documents from the records in `results/`, so that no figure is typed by hand.

A document has blocks such as

    <!-- results: demo_teacher demo_prior -->
    <!-- end results -->

which `LightningCLI render README.md` fills and `LightningCLI render --check README.md` checks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from privacy.journal import write_atomically
from sweeps.runner.fit import read_record
from sweeps.runner.guarantee_tables import methods_table, papers_table
from sweeps.runner.leaks import inversions_table, leaks_table
from sweeps.runner.pipeline import records_table

_TABLES = {"methods": methods_table, "papers": papers_table}
_OF_RECORDS = {"leaks": leaks_table, "inversions": inversions_table}
_BLOCK = re.compile(r"(<!-- (results|privacy|leaks|inversions): ([\w ]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def results_table(names: Sequence[str], folder: Path) -> str:
    """Render records as a Markdown table, one row each, with their provenance below.

    Raises:
        RunnerError: A record is missing.
    """
    records = {name: read_record(name, folder) for name in names}
    shared = sorted({f"{record['hardware']}, torch {record['versions']['torch']}" for record in records.values()})
    seeds = sorted({record["seed"] for record in records.values()})
    deltas = sorted({record["delta"] for record in records.values() if record["delta"]})
    commits = sorted({record["commit"] for record in records.values()})
    lines = [
        *records_table(records),
        f"\nLast step, no selection. δ = {', '.join(f'{delta:g}' for delta in deltas) or '–'}; unit: one training "
        f"record; seed {', '.join(map(str, seeds))}; {'; '.join(shared)}; commit {', '.join(commits)}. "
        f"Records: `results/`.\n",
    ]
    return "\n".join(lines)


def render_text(text: str, folder: Path) -> str:
    """Render every block of a text again."""

    def body(block: re.Match[str]) -> str:
        head, kind, names, tail = block.groups()
        if kind == "privacy":
            return head + _TABLES[names]() + tail
        return head + _OF_RECORDS.get(kind, results_table)(names.split(), folder) + tail

    return _BLOCK.sub(body, text)


def render(args: Sequence[str]) -> None:
    """The command `render FILE... [--check]`."""
    parser = argparse.ArgumentParser(
        prog="LightningCLI render",
        allow_abbrev=False,
        description="Write the results blocks of documents from results/.",
    )
    parser.add_argument("files", type=Path, nargs="+", help="Documents.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="Folder of the records.")
    parser.add_argument("--check", action="store_true", help="Change nothing; fail if a document is out of date.")
    options = parser.parse_args(list(args))
    texts = {file: file.read_text(encoding="utf-8") for file in options.files}
    made = {file: render_text(text, options.results) for file, text in texts.items()}
    stale = [file for file in texts if made[file] != texts[file]]
    if options.check and stale:
        sys.exit(f"error: out of date with results/, run `LightningCLI render {' '.join(map(str, stale))}`")
    for file in stale:
        write_atomically(file, made[file])
