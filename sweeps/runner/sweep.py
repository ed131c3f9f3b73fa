"""W&B's sweep files without W&B's server: `LightningCLI sweep sweeps/wandb/dpdfd_mnist.yaml`.

Each point of the grid `parameters` is run once, in a folder of its own, by the file's `command` with its macros
expanded as `wandb agent` does it, by this process or by several (`--jobs`). Other searches need W&B's server.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from lightning_modules.runtime.paths import find_config
from privacy.files import write_atomically
from sweeps.runner.fit import Fit, RunnerError
from sweeps.runner.queue import Plan, Run, Store, Task, run_plan

__all__ = ["Sweep", "sweep"]

PROGRAMS = ("LightningCLI", "transcribe")
ENTRY = ("method", "parameters", "command")


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says.

    Attributes:
        name: Its name.
        parameters: Values of each parameter, by dotted name.
        command: With macros.
        program: What `${program}` stands for.
        metric: Name of what runs are ranked by, a logged figure, and its `goal`.
    """

    name: str
    parameters: Mapping[str, Sequence[Any]]
    command: Sequence[str]
    program: str
    metric: Mapping[str, str]

    @classmethod
    def read(cls, path: str | Path) -> Sweep:
        """Reads a file.

        Raises:
            RunnerError: It does not exist, lacks an entry, searches by another method, or runs another program.
        """
        file = Path(find_config(str(path)))
        if not file.is_file():
            raise RunnerError(f"sweep file {path} does not exist")
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        if missing := [name for name in ENTRY if name not in values]:
            raise RunnerError(f"{path}: {', '.join(missing)} missing")
        if values["method"] != "grid":
            raise RunnerError(f"{path}: method must be grid without W&B's server, got {values['method']!r}")
        found = cls(
            name=str(values.get("name") or file.stem),
            parameters={name: _values(name, entry) for name, entry in values["parameters"].items()},
            command=[str(part) for part in values["command"]],
            program=str(values.get("program", "")),
            metric=values.get("metric") or {},
        )
        found.arguments({})
        return found

    def points(self) -> Iterator[dict[str, Any]]:
        """Values of the parameters, run by run."""
        for point in itertools.product(*self.parameters.values()):
            yield dict(zip(self.parameters, point, strict=True))

    def arguments(self, point: Mapping[str, Any]) -> list[str]:
        """Arguments of `LightningCLI` for one run: the command with macros expanded, from after the program on.

        Raises:
            RunnerError: The command runs something else, or uses a macro that makes no arguments for this command line.
        """
        line: list[str] = []
        for part in self.command:
            if part == "${args}":
                # As the agent writes them, in Python's words: a file says "null" in quotes, for None is not null here.
                line += [f"--{name}={value}" for name, value in point.items()]
            elif part == "${program}":
                line.append(self.program)
            elif part.startswith("${") and part not in ("${env}", "${interpreter}"):
                raise RunnerError(f"command: ${{env}}, ${{program}} and ${{args}} are understood, got {part}")
            elif not part.startswith("${"):
                line.append(part)
        program, *rest = line or [""]
        if Path(program).name not in PROGRAMS:
            raise RunnerError(f"command must run one of {', '.join(PROGRAMS)}, got {program!r}")
        return rest

    def task(self, point: Mapping[str, Any]) -> Task:
        """One run: of equal files and values it is one run."""
        fit = Fit(name="run", arguments=tuple(self.arguments(point)))
        digest = fit.digest({})
        labels = {name: str(value) for name, value in point.items()}
        return Task(
            name=f"run-{digest[:16]}",
            fit=fit,
            digest=digest,
            label=", ".join(f"{name} {value}" for name, value in labels.items()),
            note={"sweep": self.name, "labels": labels},
        )


def sweep(args: Sequence[str], *, run: Run) -> None:
    """The command `sweep FILE [--jobs N]`.

    Args:
        args: Its arguments.
        run: Takes the arguments of one command.
    """
    parser = argparse.ArgumentParser(prog="LightningCLI sweep", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", help="W&B's sweep file, for example sweeps/wandb/dpdfd_mnist.yaml.")
    parser.add_argument("--folder", default="runs/sweeps", help="Where the sweep's folder lies.")
    parser.add_argument("--dry-run", action="store_true", help="Show the command lines; run nothing.")
    parser.add_argument("--jobs", type=int, default=1, help="Fits at a time, in as many processes.")
    options = parser.parse_args(list(args))
    found = Sweep.read(options.file)
    tasks = [found.task(point) for point in found.points()]
    for task in tasks:
        _refuse_private_selection(task.fit.arguments)
    plan = Plan(tasks, Store(Path(options.folder) / found.name), title=found.name)
    # Nothing here needs a server or a key, unless the user says otherwise.
    os.environ.setdefault("WANDB_MODE", "offline")
    for number, task in enumerate(tasks, start=1):
        state = "left" if plan.current(task.name) is None else "done"
        line = " ".join(task.fit.command(plan.store.folder(task.name), {}))
        print(f"[{found.name} {number}/{len(tasks)}] {state}: {line}", flush=True)
    if options.dry_run:
        return
    say = partial(print, flush=True)
    progress = run_plan(plan, run, jobs=options.jobs, command=["sweep", *args], say=say)
    if found.metric and progress.done:
        _rank(found, plan)
    if progress.failed:
        first = next(iter(progress.failed.values()))
        sys.exit(f"error: {len(progress.failed)} of {len(tasks)} runs failed, the first one: {first}")


def _rank(found: Sweep, plan: Plan) -> None:
    """Prints the runs, the best first, and writes them into `ranking.csv`.

    Raises:
        RunnerError: No run has logged the metric.
    """
    metric = found.metric["name"]
    varied = [name for name, values in found.parameters.items() if len(values) > 1]
    logged = {name: (plan.current(name) or {}).get("metrics", {}) for name in plan.tasks}
    if all(logged.values()) and not any(metric in one for one in logged.values()):
        known = sorted({name for one in logged.values() for name in one})
        raise RunnerError(f"metric.name must be a figure that runs log, one of {known}, got {metric!r}")
    sign = -1 if found.metric.get("goal") == "maximize" else 1
    rows = [
        (logged[name].get(metric, math.nan), name, *(point[parameter] for parameter in varied))
        for point in found.points()
        for name in [found.task(point).name]
    ]
    rows.sort(key=lambda row: (math.isnan(row[0]), sign * row[0]))
    heading = [metric, "run", *varied]
    text = io.StringIO()
    csv.writer(text).writerows([heading, *rows])
    file = write_atomically(plan.store.root / "ranking.csv", text.getvalue())
    table = Table(box=box.SIMPLE_HEAD, title=f"{found.name}: {file}")
    for name in heading:
        table.add_column(name.removeprefix("model."), overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    Console(width=118).print(table)


def _refuse_private_selection(arguments: Sequence[str]) -> None:
    """Refuses runs that are compared by private records: the choice among them would be paid for by nothing.

    Raises:
        RunnerError: `data.evaluation` is `validation`.
    """
    chosen: Any = None
    for part, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = part.partition("=")
        given = value if equals else following
        if flag in ("--config", "-c", "--data"):
            file = Path(find_config(given))
            content = yaml.safe_load(file.read_text(encoding="utf-8") if file.is_file() else given)
            data = content if flag == "--data" else content.get("data") if isinstance(content, Mapping) else None
            if isinstance(data, Mapping):
                chosen = (data.get("init_args") or data).get("evaluation", chosen)
        elif flag in ("--data.evaluation", "--data.init_args.evaluation"):
            chosen = given
    if chosen == "validation":
        raise RunnerError(
            "data.evaluation is validation, which is of private records, and what a sweep selects by them reveals them "
            "beyond any stated epsilon: set it to selection, one half of the public test split, or to test"
        )


def _values(name: str, entry: Any) -> Sequence[Any]:
    if isinstance(entry, Mapping) and "value" in entry:
        return [entry["value"]]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), list):
        raise RunnerError(f"parameter {name}: a grid over dotted names needs `value` or `values`, got {entry!r}")
    return list(entry["values"])
