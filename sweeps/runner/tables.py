"""The command `tables`: list tables and figures, count the papers' that have a record, and measure missing cells."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from sweeps.runner.coverage import coverage_lines
from sweeps.runner.fit import RunnerError
from sweeps.runner.plan import MAKING, Plan, Run, Store, add_options, lacking, run_plan
from sweeps.runner.rendering import page_of, render_table
from sweeps.runner.rows import RECORDS, read_rows, write_records
from sweeps.runner.spec import Cell, Spec, list_specs

RESULTS = "results/tables"


def in_order(specs: Sequence[Spec], *, preset: str, seeds: Sequence[int] | None = None) -> list[tuple[Spec, Cell]]:
    """Orders cells by seed: the first seed of every table in the order given, then the second one of every table, ...

    An interrupted run then has results in many tables instead of all seeds of a few.
    """
    found = []
    for spec in specs:
        cells = spec.cells(preset, seeds=seeds)
        order = list(dict.fromkeys(cell.seed for cell in cells))
        found += [(order.index(cell.seed), spec, cell) for cell in cells]
    return [(spec, cell) for _, spec, cell in sorted(found, key=itemgetter(0))]


def run_tables(
    cells: Sequence[tuple[Spec, Cell]],
    *,
    preset: str,
    run: Run,
    folder: str | Path = "runs/tables",
    results: str | Path = RESULTS,
    say: Any = print,
    **how: Any,
) -> dict[str, str]:
    """Runs missing fits in `folder`; after each one, updates records and rendered tables in `results`.

    Other arguments and the result are those of `run_plan`. A fit that several cells need runs when it is first needed.
    """
    plan = Plan([task for _, cell in cells for task in cell.tasks], Store(folder), title=f"tables {preset}")
    left = [*cells]

    def follow(failed: Mapping[str, str]) -> None:
        nonlocal left
        failed = {name: reason for name, reason in failed.items() if not lacking(reason)}  # the others for another time
        ended = [
            (spec, cell) for spec, cell in left if cell.task.name in failed or plan.current(cell.task.name) is not None
        ]
        left = [entry for entry in left if entry not in ended]
        for spec in {spec.name: spec for spec, _ in ended}.values():
            records = [
                _record(spec, cell, plan, error=failed.get(cell.task.name), preset=preset)
                for of, cell in ended
                if of is spec
            ]
            with plan.store.claim(RECORDS, wait=True):  # other commands may add to the same file
                write_records(Path(results) / spec.name / preset / RECORDS, records)
            render_table(spec, results=Path(results))

    if how.get("fit") is None:  # the command that makes the whole plan collects its records
        follow({})
    return run_plan(plan, run, say=say, after=follow, **how)


def _record(spec: Spec, cell: Cell, plan: Plan, *, error: str | None, preset: str) -> dict[str, Any]:
    """Returns the record of a cell whose fit has ended."""
    if error is not None:
        # An earlier record of a cell that now fails is outdated.
        record: dict[str, Any] = {"error": error}
    else:
        # Measured by the parents' own fits, so that the student's need not evaluate its teacher.
        parents = {measure: plan.store.record(task.name)["accuracy"] for measure, task in cell.parents.items()}
        record = {**parents, **plan.store.record(cell.task.name)}
    place = {"table": spec.name, "preset": preset, "cell": dict(cell.labels), "seed": cell.seed}
    place["digest"] = cell.task.digest
    return {**place, **record, **place}  # first in its line, and not that of a record from another table


def tables(args: Sequence[str], *, run: Run, build: Callable[[Sequence[str]], Any]) -> None:
    """The command `tables list | coverage | run`.

    Raises:
        RunnerError: An option, or a table's file, is invalid.
    """
    parser = argparse.ArgumentParser(prog="LightningCLI tables", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="The tables and figures, their presets and sizes.")
    commands.add_parser("coverage", help=f"Which of the papers' printed figures have a record in {RESULTS}.")
    told = "Run the missing cells of tables as one plan, first seeds first, and render them. "
    running = commands.add_parser("run", help=f"{told}If interrupted, run the same command to continue.")
    add = running.add_argument
    add("names", nargs="*", help="Names or files. Default: all installed tables.")
    told = "smoke (digits), cpu, gpu or paper (the papers' networks). Default: smoke, or a file's first."
    add("--preset", help=told)
    add("--seeds", type=int, nargs="+", default=None, help="Seeds instead of the preset's.")
    add("--cell", nargs="+", default=[], metavar="AXIS=VALUE", help="Only the cells with these values.")
    add("--folder", type=Path, default=Path("runs/tables"), help="Folder of the fits and their records.")
    add("--record", action="store_true", help=f"Write records and rendered tables into {RESULTS}.")
    add("--again", action="store_true", help="Make the chosen cells once more: they are charged again.")
    add("--dry-run", action="store_true", help="Build each fit's model and data, and run nothing.")
    add_options(running)
    options = parser.parse_args(list(args))
    if options.command == "run":
        _run(options, run, build, args)
        return
    if options.command == "coverage":
        print(*coverage_lines(Path(RESULTS)), sep="\n")
        return
    for spec in list_specs():
        sizes = ", ".join(f"{name} ({len(spec.cells(name))})" for name in spec.presets)
        print(f"{spec.kind}-{spec.name}: {spec.title}\n    presets (cells): {sizes}")


def _run(options: argparse.Namespace, run: Run, build: Callable[[Sequence[str]], Any], args: Sequence[str]) -> None:
    wanted = options.preset or "smoke"
    specs = [*map(Spec.read, options.names)] or [spec for spec in list_specs() if wanted in spec.presets]
    if not specs:
        raise RunnerError(f"--preset: no installed table has {wanted!r}")
    preset = options.preset or ("smoke" if "smoke" in specs[0].presets else next(iter(specs[0].presets), "smoke"))
    cells = _chosen(in_order(specs, preset=preset, seeds=options.seeds), options.cell)
    if options.dry_run:
        _dry_run(cells, Plan([task for _, cell in cells for task in cell.tasks], Store(options.folder)), build)
        return
    # Not in a process that makes one of the fits, or helps.
    for _, cell in cells if options.again and options.fit is None and MAKING not in os.environ else ():
        Store(options.folder).forget(cell.task.name)
    results = Path(RESULTS) if options.record else options.folder / "results"
    how = {"jobs": options.jobs, "fit": options.fit, "slurm": options.slurm, "command": ["tables", *args]}
    where = {"folder": options.folder, "results": results, "say": partial(print, flush=True)}
    failed = run_tables(cells, preset=preset, run=run, **where, **how)
    console = Console(width=118)
    for spec in specs if options.fit is options.slurm is None else ():
        rows = {preset: read_rows(spec, preset, results)}
        console.print(Markdown(page_of(spec, rows, results=results, brief=True)))
        print(results / f"{spec.name}.md")
    # A job of one fit, for which others wait, does fail.
    if failed := {name: reason for name, reason in failed.items() if options.fit or not lacking(reason)}:
        sys.exit(f"error: {len(failed)} fits failed; each one's folder in {options.folder} has a failed.json")


def _chosen(cells: Sequence[tuple[Spec, Cell]], wanted: Sequence[str]) -> list[tuple[Spec, Cell]]:
    """Selects cells by `AXIS=VALUE`."""
    if bad := [word for word in wanted if "=" not in word]:
        raise RunnerError(f"--cell must be AXIS=VALUE, got {bad[0]!r}")
    labels = dict(word.split("=", 1) for word in wanted)
    chosen = [(spec, cell) for spec, cell in cells if labels.items() <= cell.labels.items()]
    if not chosen:
        known = {f"{axis}={value}" for _, cell in cells for axis, value in cell.labels.items()}
        raise RunnerError(f"--cell {' '.join(wanted)}: no cell has all of these; there are {', '.join(sorted(known))}")
    return chosen


def _dry_run(cells: Sequence[tuple[Spec, Cell]], plan: Plan, build: Callable[[Sequence[str]], Any]) -> None:
    left = plan.left()
    for (table, seed), turn in groupby(cells, lambda one: (f"{one[0].kind}-{one[0].name}", one[1].seed)):
        print(f"  seed {seed}  {table}: {len([*turn])} cells")
    print(f"{len(cells)} cells, {len(plan.tasks)} fits, {len(left)} of them to do", flush=True)
    for line in plan.made_before():
        print(f"  again: {line}")
    errors = {name: _error_of(plan, name, build) for name in left}
    for line in dict.fromkeys(filter(None, map(lacking, errors.values()))):
        print(f"  {line}")
    failing = {name: error for name, error in errors.items() if error and not lacking(error)}
    for name, error in failing.items():
        print(f"  would fail: {plan.tasks[name].fit.name} ({plan.tasks[name].label}): {error}")
    if failing:
        sys.exit(f"error: {len(failing)} of {len(left)} fits would fail")


def _error_of(plan: Plan, name: str, build: Callable[[Sequence[str]], Any]) -> str:
    """Builds a fit's model and data, prices its first query, and sets its private data up; returns what goes wrong.

    A fit that leaves its student no step fails, too: it would learn nothing.
    """
    from lightning_modules.base import DataFreeDistillation
    from lightning_modules.cli.calibrate import epsilon_of
    from lightning_modules.cli.errors import message_of
    from lightning_modules.training.run import steps_planned

    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            # An interrupted fit would resume, which is of a fit alone.
            cli = build([part for part in plan.command(name)[1:] if not part.startswith("--ckpt_path=")])
        if not isinstance(cli.model, DataFreeDistillation):
            cli.datamodule.setup("fit")
            return ""
        cli.datamodule.dataset.require_files("test")
        session = cli.model.session
        target, accounting = session.budget.target_epsilon, session.budget.accounting
        if target is not None and (first := epsilon_of(session, 1, accounting)) > target:
            return f"its first query costs ε = {first:.4g} ({accounting}) of {target:g}"
        steps = steps_planned(cli.trainer, length=len(cli.datamodule.train_dataloader()))
        if cli.trainer.max_steps == -1 and cli.model.schedule_steps("student", steps) <= 0:
            return f"none of its {steps:g} steps is the student's: raise trainer.max_epochs or data.steps_per_epoch"
    except SystemExit:
        return said.getvalue().strip().removeprefix("error: ")
    except Exception as error:
        return message_of(error)
    return ""
