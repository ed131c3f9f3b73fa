"""W&B's sweep files without W&B's server: `LightningCLI sweep sweeps/wandb/dpdfd_mnist.yaml`.

Grid and random search over `parameters`, each run by the file's own `command` with its macros expanded as `wandb agent`
does it, in its own folder, once: by this process, by several (`--jobs`), or by those of a Dask cluster (`--dask`).
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.runtime.paths import find_config
from sweeps.runner.fit import Fit, RunnerError
from sweeps.runner.queue import Plan, Run, Store, Task, run_plan
from sweeps.runner.workers import add_worker_arguments, workers_of

__all__ = ["Sweep", "sweep"]

PROGRAMS = ("LightningCLI", "transcribe")
ENTRY = ("method", "parameters", "command")
DISTRIBUTIONS = ("uniform", "int_uniform", "log_uniform_values", "q_uniform")


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says.

    Attributes:
        name: Its name.
        method: `grid` or `random`.
        parameters: By dotted name, as W&B describes them.
        command: With macros.
        program: What `${program}` stands for.
    """

    name: str
    method: str
    parameters: Mapping[str, Mapping[str, Any]]
    command: Sequence[str]
    program: str

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
        if values["method"] not in ("grid", "random"):
            raise RunnerError(f"{path}: method must be grid or random without a server, got {values['method']!r}")
        found = cls(
            name=str(values.get("name") or file.stem),
            method=values["method"],
            parameters=values["parameters"],
            command=[str(part) for part in values["command"]],
            program=str(values.get("program", "")),
        )
        found.arguments({})
        for name, entry in found.parameters.items():
            _check(name, entry, found.method)
        return found

    def points(self, *, count: int | None = None, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Values of the parameters, run by run.

        Args:
            count: How many; None is the whole grid. Random search needs it.
            seed: Of random search. The first runs are the same whatever `count` is.

        Raises:
            RunnerError: Random search without a count.
        """
        if self.method == "grid":
            choices = [[e["value"]] if "value" in e else list(e["values"]) for e in self.parameters.values()]
            for point in itertools.islice(itertools.product(*choices), count):
                yield dict(zip(self.parameters, point, strict=True))
            return
        if count is None:
            raise RunnerError("random search goes on for ever: give --count")
        draw = random.Random(seed)
        for _ in range(count):
            yield {name: _draw(entry, draw) for name, entry in self.parameters.items()}

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
    """The command `sweep FILE [--count N] [--jobs N] [--dask ADDRESS]`.

    Args:
        args: Its arguments.
        run: Takes the arguments of one command.
    """
    parser = argparse.ArgumentParser(prog="LightningCLI sweep", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", help="W&B's sweep file, for example sweeps/wandb/dpdfd_mnist.yaml.")
    parser.add_argument("--count", type=int, default=None, help="Runs to make at most; random search needs it.")
    parser.add_argument("--seed", type=int, default=0, help="Of random search.")
    parser.add_argument("--folder", default="runs/sweeps", help="Where the sweep's folder lies.")
    parser.add_argument("--dry-run", action="store_true", help="Show the command lines; run nothing.")
    add_worker_arguments(parser.add_argument)
    options = parser.parse_args(list(args))
    workers = workers_of(options)
    found = Sweep.read(options.file)
    tasks = [found.task(point) for point in found.points(count=options.count, seed=options.seed)]
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
    progress = run_plan(plan, run, workers=workers, say=lambda text: print(text, flush=True))
    if progress.failed:
        first = next(iter(progress.failed.values()))
        sys.exit(f"error: {len(progress.failed)} of {len(tasks)} runs failed, the first one: {first}")


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


def _check(name: str, entry: Mapping[str, Any], method: str) -> None:
    if not isinstance(entry, Mapping):
        raise RunnerError(f"parameter {name}: a mapping is needed, got {entry!r}")
    if "parameters" in entry:
        raise RunnerError(f"parameter {name}: nested parameters reach no command line; use dotted names")
    if "value" in entry or "values" in entry:
        return
    if method == "grid":
        raise RunnerError(f"parameter {name}: a grid needs `value` or `values`, got {sorted(entry)}")
    if not {"min", "max"} <= set(entry):
        raise RunnerError(f"parameter {name}: `value`, `values` or `min` and `max` are needed, got {sorted(entry)}")
    kind = entry.get("distribution", "uniform")
    if kind not in DISTRIBUTIONS:
        raise RunnerError(f"parameter {name}: distribution must be one of {DISTRIBUTIONS}, got {kind!r}")
    if not entry["min"] <= entry["max"] or (kind == "log_uniform_values" and entry["min"] <= 0):
        raise RunnerError(
            f"parameter {name}: min and max do not span an interval, got {entry['min']} and {entry['max']}"
        )


def _draw(entry: Mapping[str, Any], draw: random.Random) -> Any:
    if "value" in entry:
        return entry["value"]
    if "values" in entry:
        return draw.choices(list(entry["values"]), weights=entry.get("probabilities"))[0]
    low, high = entry["min"], entry["max"]
    # W&B's own rule for what an interval means where no distribution is named.
    whole = isinstance(low, int) and isinstance(high, int)
    kind = entry.get("distribution", "int_uniform" if whole else "uniform")
    if kind == "int_uniform":
        return draw.randint(int(low), int(high))
    if kind == "log_uniform_values":
        return math.exp(draw.uniform(math.log(low), math.log(high)))
    value = draw.uniform(low, high)
    return round(value / entry.get("q", 1)) * entry.get("q", 1) if kind == "q_uniform" else value
