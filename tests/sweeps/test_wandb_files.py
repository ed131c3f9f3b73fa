"""Each of W&B's sweep files: every value of every parameter is understood, and one point runs, on the digits."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import QUIET

import sweeps
from lightning_modules.cli import main
from lightning_modules.cli.fit import command_line as build
from sweeps.runner.sweep import Sweep

SWEEPS = Path(sweeps.__path__[0])
FILES = sorted((SWEEPS / "wandb").glob("*.yaml"))
METHODS = ("dgd", "distillation", "dp_teacher", "dpdfd", "dpsd", "labeldp")
TINY = ["--trainer.max_epochs=1", "--trainer.limit_val_batches=1", "--data.batch_size=4", *QUIET]


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


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory, trained_teacher: Path) -> Path:
    """A folder with a teacher of each kind that these files name, and its ledgers."""
    folder, before = tmp_path_factory.mktemp("teachers"), Path.cwd()
    shutil.copytree(trained_teacher.parents[1], folder, dirs_exist_ok=True)
    os.chdir(folder)
    others = os.environ.pop("TRANSCRIPTION_LEDGERS", None)
    few = ["--model.steps=1", "--data.num_teachers=4", "--data.require_all_classes=false", "--data.batch_size=4"]
    try:
        main(["fit", "--config", "sweeps/methods/ensemble_digits.yaml", *few, *QUIET])
        main(["fit", "--config", "sweeps/dp_teacher_digits.yaml", "--trainer.limit_train_batches=1", *TINY])
    finally:
        os.chdir(before)
        if others is not None:
            os.environ["TRANSCRIPTION_LEDGERS"] = others
    return folder


@pytest.fixture
def place(teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(teachers, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def each_value_once(found: Sweep) -> list[dict[str, Any]]:
    """Points that together have every value of every parameter."""
    choices = {
        name: [entry["value"]] if "value" in entry else entry["values"] for name, entry in found.parameters.items()
    }
    most = max(len(values) for values in choices.values())
    return [{name: values[number % len(values)] for name, values in choices.items()} for number in range(most)]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=method)
def test_every_value_of_every_parameter_is_understood(path: Path, place: Path) -> None:
    found = Sweep.read(path)
    for point in each_value_once(found):
        command, *line = on_digits(found, point)
        assert command == "fit"
        build([*line, *QUIET], run=False)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"model.annotator.sigma": 1.0}, {"model.images": "photographs"}])
def test_a_parameter_or_a_value_that_does_not_exist_is_noticed(place: Path, change: dict[str, Any]) -> None:
    found = Sweep.read(FILES[METHODS.index("dpdfd")])
    point = {**next(found.points()), **change}
    with pytest.raises((SystemExit, ValueError)):
        build([*on_digits(found, point)[1:], *QUIET], run=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=method)
def test_one_point_runs(path: Path, place: Path) -> None:
    found = Sweep.read(path)
    line = on_digits(found, next(found.points()))
    less = [] if method(path) == "dp_teacher" else ["--data.steps_per_epoch=1"]
    less += {"dp_teacher": ["--trainer.limit_train_batches=1"], "distillation": ["--model.pool_size=8"]}.get(
        method(path), []
    )
    kept = {file: file.read_bytes() for file in Path("teachers").iterdir()}
    cli = main([*line, "--trainer.default_root_dir=run", *TINY, *less])
    assert cli is not None and cli.trainer.global_step >= 1
    assert "val/accuracy" in cli.trainer.callback_metrics
    record = json.loads(Path("run/result.json").read_text())
    assert record["config"]["data"]["init_args"]["evaluation"] == "selection"
    # No run writes over a teacher that others use.
    assert {file: file.read_bytes() for file in Path("teachers").iterdir()} == kept
