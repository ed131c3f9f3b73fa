"""The command `render`: tables in documents from the records in `results/`, so that no figure is typed by hand.

`LightningCLI render` writes the pages of all tables and their index, `docs/results.md`. `LightningCLI render README.md`
fills the blocks of a document, such as

    <!-- results: demo_teacher demo_prior -->
    <!-- end results -->
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from privacy.journal import write_atomically
from sweeps.runner.fit import read_record
from sweeps.runner.guarantee_tables import methods_table, papers_table, votes_table
from sweeps.runner.leaks import inversions_table, leaks_table
from sweeps.runner.pipeline import records_table
from sweeps.runner.rendering import render_pages

_TABLES = {"methods": methods_table, "papers": papers_table, "votes": votes_table}
_OF_RECORDS = {"leaks": leaks_table, "inversions": inversions_table}
INDEX, RESULTS = Path("docs/results.md"), Path("results")
_BLOCK = re.compile(r"(<!-- (results|privacy|leaks|inversions): ([\w ]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def results_table(names: Sequence[str], folder: Path) -> str:
    """Renders records as a Markdown table, one row each, with their provenance below."""
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
    """Renders every block of a text again."""

    def body(block: re.Match[str]) -> str:
        head, kind, names, tail = block.groups()
        if kind == "privacy":
            return head + _TABLES[names]() + tail
        return head + _OF_RECORDS.get(kind, results_table)(names.split(), folder) + tail

    return _BLOCK.sub(body, text)


def render(args: Sequence[str]) -> None:
    """The command `render [FILE...]`."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI render", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", help="Documents. Default: the pages of all tables.")
    files = parser.parse_args(list(args)).files
    made = {file: render_text(file.read_text(encoding="utf-8"), RESULTS) for file in files}
    for file, text in (made or render_pages(INDEX, results=RESULTS / "tables")).items():
        write_atomically(file, text)
