"""Makes fits in order, each once and in its own folder: `LightningCLI pipeline sweeps/demo.yaml`.

A fit is skipped if the values of its configuration and its parents are unchanged since it finished; an interrupted fit
resumes from its last checkpoint. Fits that run again are announced first, since they charge the private data again.
`sweeps.runner.spec` describes the file.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from rich.console import Console
from rich.markdown import Markdown

from lightning_modules.callbacks.figures import save_figure
from lightning_modules.callbacks.results import role
from privacy.checks import short_epsilon
from privacy.journal import write_atomically
from sweeps.runner.figures import comparison
from sweeps.runner.fit import RunnerError
from sweeps.runner.guarantee_tables import short_claim
from sweeps.runner.plan import Plan, Run, Store, add_options, run_plan
from sweeps.runner.spec import Spec

MEANING = """\
ε published   what the paper's own theorem gives: the figure its tables are indexed by. A claim; it bounds no record.
ε record      an upper bound that holds for every single record the teacher was trained on, at the same δ.
              In the hundreds or above it protects nobody: then treat the student like the teacher itself.
A teacher that was trained without differential privacy has no bound at all (inf)."""


def pipeline(args: Sequence[str], *, run: Run) -> None:
    """The command `pipeline FILE`.

    Raises:
        RunnerError: The file is invalid, or a fit failed.
    """
    parser = argparse.ArgumentParser(
        prog="LightningCLI pipeline",
        allow_abbrev=False,
        description="Run fits in order, each once, in folders of their own.",
    )
    parser.add_argument("file", help="Pipeline file, for example sweeps/demo.yaml.")
    parser.add_argument("--results", type=Path, help="Copy each fit's record and the figure into this folder.")
    add_options(parser)
    options = parser.parse_args(list(args))
    spec = Spec.read(options.file)
    plan = Plan(spec.pipeline(), Store(spec.folder), title=spec.name)
    how = {"jobs": options.jobs, "fit": options.fit, "slurm": options.slurm, "command": ["pipeline", *args]}
    failed = run_plan(plan, run, say=rank_zero_info, **how)
    if failed:
        name, error = next(iter(failed.items()))
        raise RunnerError(f"{spec.name}: not all fits were made: {name}: {error}")
    if plan.left():
        return  # only one fit was asked for, or a script
    folders = {name: spec.folder / name for name in plan.tasks}
    rank_zero_info(_summary(folders, title=spec.title if spec.kind == "figure" else None, folder=spec.folder))
    if options.results is not None:
        for name, place in folders.items():
            write_atomically(options.results / f"{spec.name}_{name}.json", (place / "result.json").read_bytes())
        if (figure := spec.folder / "figure.png").is_file():
            write_atomically(options.results / f"{spec.name}.png", figure.read_bytes())


def _summary(folders: Mapping[str, Path], *, title: str | None = None, folder: Path) -> str:
    """Summarises finished fits: a table, the meaning of its columns, and the paths of figures and guarantees.

    With a `title`, the curves of all students are plotted to a figure in the pipeline's `folder`.
    """
    files = {name: place / "result.json" for name, place in folders.items()}
    records = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}
    stream = io.StringIO()
    Console(file=stream, width=118).print(Markdown("\n".join(records_table(records))))
    lines = [stream.getvalue().rstrip(), "", MEANING, ""]
    histories = {name: record["curve"] for name, record in records.items() if record.get("curve")}
    if title is not None and histories:
        pictures = {
            name: grids[-1]
            for name in histories
            if (grids := sorted(folders[name].glob("*/figures/synthetic_*.png"), key=lambda path: path.name))
        }
        figure = comparison(histories, dict(list(pictures.items())[:2]), title=title)
        lines.append(f"{'all':<13} figure {save_figure(figure, folder / 'figure.png')}")
    for name, place in folders.items():
        if (page := place / "public" / "guarantee.md").is_file():
            lines.append(f"{name:<13} guarantee {page}; the artefacts that it covers are next to it")
    return "\n".join(lines)


def records_table(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Renders records by name as lines of a Markdown table, one row each."""
    lines = [
        "| run | what | data | test accuracy | ε published (claim) | ε record-level (bound) | steps | seconds |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, record in records.items():
        accuracy = f"{100 * record['accuracy']:.2f} %"
        lines.append(
            f"| `{name}` | {role(record)} | {record['dataset']} | {accuracy} | {_claim(record) or '–'} | "
            f"{short_epsilon(float(record['epsilon_record']))} | {record['steps']:,} | {record['wall_seconds']:.0f} |"
        )
    return lines


def _claim(record: Mapping[str, Any]) -> str | None:
    """Formats the published ε of a record; None without a claim."""
    if not record.get("published_claim") or isinstance(value := record["epsilon_published"], str):
        return None
    return short_claim(value)
