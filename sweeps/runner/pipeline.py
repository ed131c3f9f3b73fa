"""Makes fits in order, each once and in its own folder: `LightningCLI pipeline sweeps/demo.yaml`.

A fit is skipped if the values of its configuration and its parents are unchanged since it finished; an interrupted fit
resumes from its last checkpoint. Fits that run again are announced first, since they charge the private data again.
`sweeps.runner.spec` describes the file.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from rich.console import Console
from rich.markdown import Markdown

from lightning_modules.callbacks.figures import save_figure
from lightning_modules.callbacks.results import role
from privacy.checks import short_epsilon
from sweeps.runner.figures import comparison
from sweeps.runner.fit import RunnerError
from sweeps.runner.markdown import short_claim, table
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
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI pipeline", description=__doc__)
    parser.add_argument("file", help="Pipeline file, for example sweeps/demo.yaml.")
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
    rank_zero_info(_summary(spec, plan))


def _summary(spec: Spec, plan: Plan) -> str:
    """Summarises finished fits: a table, the meaning of its columns, and the paths of figures and guarantees.

    Of a figure, the curves of all students are plotted in the pipeline's folder.
    """
    records = {name: record for name in plan.tasks if (record := plan.store.record(name))}
    stream = io.StringIO()
    Console(file=stream, width=118).print(Markdown("\n".join(records_table(records))))
    lines = [stream.getvalue().rstrip(), "", MEANING, ""]
    histories = {name: record["curve"] for name, record in records.items() if record.get("curve")}
    if spec.kind == "figure" and histories:
        pictures = {
            name: grids[-1]
            for name in histories
            if (grids := sorted((spec.folder / name).glob("*/figures/synthetic_*.png"), key=lambda path: path.name))
        }
        figure = comparison(histories, dict(list(pictures.items())[:2]), title=spec.title)
        lines.append(f"{'all':<13} figure {save_figure(figure, spec.folder / 'figure.png')}")
    for name in plan.tasks:
        if (page := spec.folder / name / "public" / "guarantee.md").is_file():
            lines.append(f"{name:<13} guarantee {page}; the artefacts that it covers are next to it")
    return "\n".join(lines)


def records_table(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Renders records by name as lines of a Markdown table, one row each."""
    rows = []
    for name, record in records.items():
        claim, length = "–", [f"{record['steps']:,}", f"{record['wall_seconds']:.0f}"]
        if record.get("published_claim") and not isinstance(record["epsilon_published"], str):
            claim = short_claim(record["epsilon_published"])
        figures = [f"{100 * record['accuracy']:.2f} %", claim, short_epsilon(float(record["epsilon_record"]))]
        rows.append([f"`{name}`", role(record), record["dataset"], *figures, *length])
    epsilons = ["ε published (claim)", "ε record-level (bound)"]
    return table(["run", "what", "data"], ["test accuracy", *epsilons, "steps", "seconds"], rows)
