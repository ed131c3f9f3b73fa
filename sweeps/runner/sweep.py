"""The command `sweep`: every run of a grid in a W&B sweep's file, here and without W&B's server.

Each run is the command that an agent of W&B's would run, with the same `${args}`; W&B logs it offline unless WANDB_MODE
says otherwise. A run that has finished is not made again, as it would be charged again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markdown import Markdown

from lightning_modules.cli.configs import find_config
from privacy.checks import short_epsilon
from sweeps.runner.fit import Fit, RunnerError
from sweeps.runner.markdown import table
from sweeps.runner.plan import Store

KEPT = ("accuracy", "epsilon_record")


def sweep(args: Sequence[str], *, run: Callable[[Sequence[str]], Any]) -> None:
    """The command `sweep FILE`.

    Raises:
        RunnerError: The file is none of a grid, or its program is another one.
    """
    parser = argparse.ArgumentParser(prog="LightningCLI sweep", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path, help="A W&B sweep's file, such as sweeps/wandb/dpdfd_digits.yaml.")
    parser.add_argument("--folder", type=Path, default=Path("runs/sweeps"), help="Folder of the finished runs' notes.")
    options = parser.parse_args(list(args))
    values = yaml.safe_load(Path(find_config(str(options.file))).read_text(encoding="utf-8"))
    store, metric = Store(options.folder / options.file.stem), values["metric"]
    os.environ.setdefault("WANDB_MODE", "offline")
    notes = []
    runs = list(points(values, str(options.file)))
    for number, point in enumerate(runs, start=1):
        line = command(values, point)
        files = [value for name, value in itertools.pairwise(line) if name == "--config"]
        name = Fit(name="sweep", config=files, set={"line": line}).digest({})[:16]
        if store.done(name) is None:
            print(f"[sweep {number} of {len(runs)}] LightningCLI {' '.join(line)}", flush=True)
            store.finish(name, **_measured(run(line), metric["name"]))
        notes.append(store.done(name) or {})
    varied = [name for name in runs[0] if len({str(point[name]) for point in runs}) > 1]
    rows = sorted(zip(runs, notes, strict=True), key=lambda row: -row[1]["chosen_by"])
    cells = []
    for point, note in rows:
        shown = [f"{100 * note[key]:.2f} %" for key in ("chosen_by", "accuracy")]
        cells.append([*(str(point[name]) for name in varied), *shown, short_epsilon(float(note["epsilon_record"]))])
    lines = table(varied, [metric["name"], "test accuracy", "ε record-level"], cells)
    Console(width=118).print(Markdown("\n".join(lines)))


def points(values: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Parameters of each run of a grid, in W&B's order.

    Raises:
        RunnerError: It is no grid, or its program is another one.
    """
    if values.get("method") != "grid" or values.get("program") != "LightningCLI":
        raise RunnerError(f"{where}: without W&B's server, method must be grid and program LightningCLI")
    choices = {name: entry.get("values") or [entry["value"]] for name, entry in values["parameters"].items()}
    yield from (dict(zip(choices, given, strict=True)) for given in itertools.product(*choices.values()))


def command(values: Mapping[str, Any], point: Mapping[str, Any]) -> list[str]:
    """Arguments of the program in one run: `${args}` in W&B's own words."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    macros: dict[str, Any] = {"env": [], "interpreter": [], "program": []}
    macros |= create_sweep_command_args({"args": {name: {"value": value} for name, value in point.items()}})
    parts = [str(part) for part in create_sweep_command([*values["command"]])]
    return [word for part in parts for word in (macros[part[2:-1]] if part.startswith("${") else [part])]


def _measured(cli: Any, metric: str) -> dict[str, Any]:
    """What a run is chosen by, and its record's figures."""
    import wandb

    from lightning_modules.training.run import run_folder

    record = json.loads((run_folder(cli.trainer) / "result.json").read_text(encoding="utf-8"))
    wandb.finish()  # Lightning would let the next fit continue its run
    if metric not in (logged := cli.trainer.callback_metrics):
        raise RunnerError(f"metric.name must be one of {', '.join(sorted(logged))}, got {metric!r}")
    return {"chosen_by": float(logged[metric]), **{name: record[name] for name in KEPT}}
