"""Each of W&B's sweep files: every value of every parameter is understood, on the digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import QUIET

import sweeps
from lightning_modules.cli.fit import command_line as build
from sweeps.runner.sweep import Sweep

SWEEPS = Path(sweeps.__path__[0])
FILES = sorted((SWEEPS / "wandb").glob("*.yaml"))
METHODS = ("dgd", "distillation", "dp_teacher", "dpdfd", "dpsd", "labeldp")


def method(path: Path) -> str:
    return path.stem.removesuffix("_mnist")


def on_digits(found: Sweep, point: dict[str, Any]) -> list[str]:
    """The command line of a run, of the file for the digits, without W&B, whose part `test_sweep` has."""
    line = [part.replace("_mnist.", "_digits.") for part in found.arguments(point) if "--trainer.logger" not in part]
    return [str(next(SWEEPS.rglob(Path(part).name))) if part.endswith(".yaml") else part for part in line]


def test_there_is_a_file_for_each_method() -> None:
    assert tuple(method(path) for path in FILES) == METHODS


@pytest.mark.parametrize("path", FILES, ids=method)
def test_the_file_is_what_wandb_sweep_takes(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    # The keys that W&B's server checks, and macros its agent knows.
    assert values["method"] in ("grid", "random", "bayes") and values["parameters"] and values["program"]
    assert "goal" in values["metric"]
    # What is maximised is kept apart from what is reported.
    assert values["metric"]["name"] == "val/accuracy"
    assert values["parameters"]["data.evaluation"] == {"value": "selection"}
    assert all(set(entry) <= {"value", "values"} for entry in values["parameters"].values())
    assert values["name"] == path.stem and {f"sweeps/{path.stem}.yaml", f"sweeps/methods/{path.stem}.yaml"} & set(
        values["command"]
    )
    json.dumps(values)


def each_value_once(found: Sweep) -> list[dict[str, Any]]:
    """Points that together have every value of every parameter."""
    most = max(len(values) for values in found.parameters.values())
    choices = found.parameters.items()
    return [{name: values[number % len(values)] for name, values in choices} for number in range(most)]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=method)
def test_every_value_of_every_parameter_is_understood(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = Sweep.read(path)
    for point in each_value_once(found):
        command, *line = on_digits(found, point)
        assert command == "fit"
        build([*line, *QUIET], run=False)
