"""The command `tables`: list them, run what is missing, render what is there, follow digests that change."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from privacy.files import write_atomically
from sweeps.runner.engines import add_engine_arguments, engine_of
from sweeps.runner.plan import Task, duration, estimate
from sweeps.runner.schedule import schedule
from sweeps.runner.store import Store
from sweeps.runner.tables.cells import Cell
from sweeps.runner.tables.digests import current_digests, replace_digests
from sweeps.runner.tables.order import Turn, in_order, without_measured
from sweeps.runner.tables.records import plan_of, records_by_digest, run_table, share_records
from sweeps.runner.tables.rendering import render_results, render_table
from sweeps.runner.tables.run_tables import plan_of_turns, run_tables
from sweeps.runner.tables.spec import TableSpec, list_specs

__all__ = ["tables"]


def tables(args: Sequence[str], *, run: Callable[[list[str]], Any]) -> None:
    """The command.

    Args:
        args: Its arguments.
        run: Takes the arguments of one `fit` command.
    """
    options = _parser().parse_args(list(args))
    commands = {
        "list": _list, "run": _run, "all": _all, "render": _render, "digests": _digests, "migrate": _migrate,
    }  # fmt: skip
    commands[options.command](options, run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="LightningCLI tables", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="The tables and figures, their presets and sizes.")
    run = commands.add_parser("run", help="Run the missing cells of tables, one table after another, and render them.")
    every = commands.add_parser(
        "all",
        help="Run the missing cells of all tables as one plan, in order of value, first seeds first. Interrupted, the "
        "same command goes on.",
    )
    for parser_of_fits in (run, every):
        _add_run_arguments(parser_of_fits)
    every.add_argument(
        "--keep-records",
        action="store_true",
        help="Leave out cells of which --results has a record of their current configuration, of any table.",
    )
    every.add_argument(
        "--hours", type=_hours, default=math.inf, help="Begin no fit that its estimate says would not end in that time."
    )
    render = commands.add_parser("render", help="Render all records again, and the document of all tables.")
    render.add_argument("--results", default="results/tables", help="Where the records are.")
    render.add_argument("--check", action="store_true", help="Leave the document; fail where it is out of date.")
    render.add_argument("--document", default="docs/results.md", help="The document to write.")
    digests = commands.add_parser("digests", help="Write which records are up to date, before configurations change.")
    digests.add_argument("file", help="JSON file to write.")
    digests.add_argument("--results", default="results/tables", help="Where the records are.")
    migrate = commands.add_parser(
        "migrate", help="Give records that were up to date their current digests. For changes that change no outcome."
    )
    migrate.add_argument("file", help="What `digests` wrote before the change.")
    migrate.add_argument("--results", default="results/tables", help="Where the records are.")
    migrate.add_argument("--folder", default="runs/tables", help="Where fits lie; they are found again as well.")
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="Names or files; none are all that are installed.")
    parser.add_argument("--preset", default="smoke", help="smoke (digits), cpu, or paper (as printed).")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="In place of the preset's.")
    parser.add_argument("--folder", default="runs/tables", help="Where fits lie, shared by all tables.")
    parser.add_argument("--results", default="results/tables", help="Where records and rendered tables go.")
    add_engine_arguments(parser.add_argument)
    parser.add_argument("--dry-run", action="store_true", help="Show what would be run with its cost; run nothing.")
    parser.add_argument(
        "--select-by-test", action="store_true", help="Report the best step by test accuracy; the table will say so."
    )


def _hours(given: str) -> float:
    try:
        hours = float(given)
    except ValueError:
        hours = math.nan
    if not hours > 0:
        raise argparse.ArgumentTypeError(f"must be a number of hours above 0, got {given!r}")
    return hours


def _specs(names: Sequence[str], preset: str) -> list[TableSpec]:
    if names:
        return [TableSpec.read(name) for name in names]
    installed = list_specs()
    if chosen := [spec for spec in installed if preset in spec.presets]:
        return chosen
    known = sorted({name for spec in installed for name in spec.presets})
    sys.exit(f"error: --preset must be one of {', '.join(known)}, got {preset!r}")


def _list(options: argparse.Namespace, run: Callable[[list[str]], Any]) -> None:
    specs = list_specs()
    width = max(len(f"{spec.kind}-{spec.name}") for spec in specs)
    for spec in specs:
        sizes = ", ".join(f"{name} ({len(spec.cells(name))})" for name in spec.presets)
        print(f"{f'{spec.kind}-{spec.name}':<{width}}  {spec.title}\n{'':<{width}}  presets (cells): {sizes}")


def _run(options: argparse.Namespace, run: Callable[[list[str]], Any]) -> None:
    engine = engine_of(options)
    failed = left = 0
    for spec in _specs(options.names, options.preset):
        if options.select_by_test:
            spec = replace(spec, selection="best_on_test")
        if options.dry_run:
            _dry_run(spec, options)
            continue
        outcome = run_table(
            spec,
            preset=options.preset,
            run=run,
            folder=options.folder,
            results=options.results,
            seeds=options.seeds,
            engine=engine,
            say=lambda text: print(text, flush=True),
        )
        files = render_table(spec, preset=options.preset, results=options.results)
        print(f"{outcome.line(f'{spec.name} {options.preset}')}: {', '.join(map(str, files))}")
        failed += outcome.failed
        left += outcome.left
    _complain(failed=failed, left=left, folder=options.folder)


def _complain(*, failed: int, left: int, folder: str) -> None:
    if failed:
        sys.exit(f"error: {failed} fits failed; each one's folder in {folder} has a failed.json with the reason")
    if left:
        sys.exit(f"error: {left} fits were not made: workers ended too early, see the logs in {folder}")


def _all(options: argparse.Namespace, run: Callable[[list[str]], Any]) -> None:
    engine, begun = engine_of(options), time.time()
    specs = _specs(options.names, options.preset)
    if options.select_by_test:
        specs = [replace(spec, selection="best_on_test") for spec in specs]
    turns = in_order(specs, preset=options.preset, seeds=options.seeds)
    if options.keep_records:
        records = records_by_digest(Path(options.results))
        if not options.dry_run:
            _share(turns, records, options)
        turns = without_measured(turns, records)
    if options.dry_run:
        _dry_run_all(turns, options)
        return
    outcome = run_tables(
        turns,
        preset=options.preset,
        run=run,
        folder=options.folder,
        results=options.results,
        engine=engine,
        hours=options.hours,
        say=lambda text: print(text, flush=True),
    )
    print(outcome.line(f"tables {options.preset}"))
    plan = plan_of_turns(turns, Store(options.folder), preset=options.preset)
    rest = begun + 3600 * options.hours - time.time()
    unmade = [
        name for name in schedule(plan, jobs=1, seconds=rest) if plan.state(plan.tasks[name], since=begun) == "left"
    ]
    if late := outcome.left - len(unmade):
        print(f"{late} fits are left that would not end in {options.hours:g} h: the same command goes on")
    _complain(failed=outcome.failed, left=len(unmade), folder=options.folder)


def _share(turns: Sequence[Turn], records: Mapping[str, Mapping[str, Any]], options: argparse.Namespace) -> None:
    """Tables get the cells that others have measured."""
    for spec in {turn.spec.name: turn.spec for turn in turns}.values():
        cells = [cell for turn in turns if turn.spec.name == spec.name for cell in turn.cells]
        new = share_records(spec, cells, records, preset=options.preset, results=Path(options.results))
        if new:
            render_table(spec, preset=options.preset, results=options.results)
            print(f"{spec.name}: {new} cells that other tables have measured", flush=True)


def _dry_run_all(turns: Sequence[Turn], options: argparse.Namespace) -> None:
    plan = plan_of_turns(turns, Store(options.folder), preset=options.preset)
    seconds = 3600 * options.hours
    notes, ends = plan.store.notes(), schedule(plan, jobs=options.jobs, seconds=seconds)
    seen: set[str] = set()
    print(f"{len(turns)} tables and seeds, {sum(len(turn.cells) for turn in turns)} cells, {len(plan.tasks)} fits")
    for turn in turns:
        names = {fit.folder_name for cell in turn.cells for fit in cell.fit.lineage()} - seen
        seen |= names
        missing = [name for name in names if plan.current(plan.tasks[name]) is None]
        costs = [estimate(plan.tasks[name], notes)[0] for name in missing]
        cost = duration(sum(cost or 0.0 for cost in costs)) + (" and more" if None in costs else "")
        reached = [ends[cell.fit.folder_name] for cell in turn.cells if cell.fit.folder_name in ends]
        when = f"ends after {duration(max(reached))}" if reached else "not reached"
        if 0 < len(reached) < len(turn.cells):
            when += f", {len(turn.cells) - len(reached)} of its cells not reached"
        place = f"seed {turn.seed}  {turn.spec.kind}-{turn.spec.name}"
        print(
            f"  {place:<30} {len(turn.cells):>3} cells, {len(missing):>3} fits to do  {cost:<8}"
            f"  {'done' if not missing and max(reached, default=1.0) == 0.0 else when}"
        )
    for line in plan.made_before():
        print(f"  again: {line}")
    progress = plan.progress(since=time.time(), jobs=options.jobs)
    print(f"{progress.line(f'tables {options.preset}')} in {options.jobs} of {os.cpu_count()} cores")
    if options.hours < math.inf:
        reached_fits = len(ends) - progress.done
        print(f"in {options.hours:g} h: {reached_fits} of {len(plan.tasks) - progress.done} missing fits")


def _dry_run(spec: TableSpec, options: argparse.Namespace) -> None:
    cells = spec.cells(options.preset, seeds=options.seeds)
    plan = plan_of(cells, Store(options.folder))
    notes = plan.store.notes()
    total, unknown = 0.0, 0
    print(f"{spec.kind}-{spec.name} {options.preset}: {len(cells)} cells, {len(plan.tasks)} fits")
    for name, task in plan.tasks.items():
        state = plan.state(task)
        seconds, source = estimate(task, notes)
        cost = "unknown" if seconds is None else f"{duration(seconds)} ({source})"
        print(f"  {state:<8} {name:<30} {cost:<20} {_place(task, cells)}")
        if state != "done":
            total, unknown = total + (seconds or 0.0), unknown + (seconds is None)
    for line in plan.made_before():
        print(f"  again: {line}")
    more = f", and {unknown} fits of unknown cost" if unknown else ""
    print(f"  to do: {duration(total / options.jobs)} in {options.jobs} of {os.cpu_count()} cores{more}")


def _place(task: Task, cells: Sequence[Cell]) -> str:
    cell = next((cell for cell in cells if cell.fit.folder_name == task.name), None)
    if cell is None:
        return "shared by cells"
    return ", ".join([*(f"{axis} {value}" for axis, value in cell.labels.items()), f"seed {cell.seed}"])


def _digests(options: argparse.Namespace, run: Callable[[list[str]], Any]) -> None:
    found = current_digests(Path(options.results))
    print(f"{len(found)} records are up to date: {write_atomically(options.file, json.dumps(found, indent=1))}")


def _migrate(options: argparse.Namespace, run: Callable[[list[str]], Any]) -> None:
    before = json.loads(Path(options.file).read_text(encoding="utf-8"))
    changed = replace_digests(before, results=Path(options.results), store=Store(options.folder))
    print(f"{changed} of {len(before)} records have a new digest")


def _render(options: argparse.Namespace, run: Callable[[list[str]], Any]) -> None:
    document = Path(options.document)
    text = render_results(options.results, document, write=not options.check)
    if options.check:
        if not document.is_file() or document.read_text(encoding="utf-8") != text:
            sys.exit(f"error: {document} is not as {options.results} has it, run `LightningCLI tables render`")
        return
    write_atomically(document, text)
    print(document)
