"""W&B's sweep file drives the real command, with and without its agent; offline runs are whole, named and described."""

from __future__ import annotations

import csv
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
import yaml
from support.idx_files import write_mnist
from support.runs import QUIET, configuration

import sweeps
from lightning_modules.cli import main
from lightning_modules.runtime.wandb_runs import end_wandb_run
from privacy.formatting import round_up
from sweeps.runner.fit import RunnerError
from sweeps.runner.sweep import Sweep, sweep

FILE = Path(sweeps.__path__[0]) / "wandb" / "dpdfd_mnist.yaml"
TINY = ["--trainer.max_epochs=1", "--trainer.limit_val_batches=1", "--data.steps_per_epoch=1", "--data.batch_size=4"]


@pytest.fixture
def quick_figures() -> None:
    """W&B reads the figures that it is handed: here they are real ones."""


@pytest.fixture(autouse=True)
def own_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    yield
    end_wandb_run()


def as_the_agent_does(values: dict[str, Any], point: dict[str, Any]) -> list[str]:
    """The command line of one run: macros that fill a whole part become lists, `${args}` in W&B's own words."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    macros = {
        "program": [values["program"]],
        "env": ["/usr/bin/env"],
        "interpreter": ["python"],
        **create_sweep_command_args({"args": {name: {"value": value} for name, value in point.items()}}),
    }
    line: list[str] = []
    for part in map(str, create_sweep_command(list(values["command"]))):
        if part.startswith("${") and part.endswith("}"):
            line += macros[part[2:-1]]
        else:
            line.append(part)
    return line


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path == FILE else pytest.mark.slow)
        for path in sorted(FILE.parent.glob("*.yaml"))
    ],
)
def test_the_offline_runner_expands_as_the_agent_does(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    found = Sweep.read(path)
    points = list(found.points())
    assert len(points) >= 24 and len({found.task(point).name for point in points}) == len(points)
    for point in points[::7]:
        line = as_the_agent_does(values, point)
        assert line[:2] == ["/usr/bin/env", "LightningCLI"]
        assert line[2:] == found.arguments(point)


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "data", name="MNIST")
    limits = ["--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1", "--trainer.max_epochs=1"]
    main(["fit", "--config", "sweeps/teacher_mnist.yaml", *limits, *QUIET])
    return tmp_path


def test_the_agent_runs_the_real_command_and_leaves_what_wandb_sync_accepts(mnist: Path) -> None:
    values = yaml.safe_load(FILE.read_text())
    point = next(Sweep.read(FILE).points())
    _, program, *arguments = as_the_agent_does(values, point)
    assert program == "LightningCLI"
    cli = main([*arguments, *TINY, *QUIET])
    assert cli is not None and cli.model.images.kind == point["model.images.source"]
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == point["model.student.optimizer.lr"]
    end_wandb_run()
    wandb.teardown()  # as at the end of a process: W&B's own writes what it still holds
    (folder,) = Path().rglob("offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    records = list(datastore(file))
    kinds = {record.WhichOneof("record_type") for record in records}
    assert {"run", "history", "exit"} <= kinds
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    reached = round_up(cli.model.guarantee().epsilon, digits=3)  # what it was told to reach stood there
    names = ["DPDFD-MNIST", f"DPDFD-MNIST-eps{reached}"]
    assert [run.display_name for run in runs] == names and {run.run_group for run in runs} == {"DPDFD-MNIST"}
    tags = {"paper:DPDFD", "method:DPDFD", "dataset:MNIST", "target_epsilon:1", "accounting:published"}
    assert set(runs[0].tags) == tags
    config = logged_config(records)
    assert "annotator" not in config  # the model's settings stand under `model`, once
    assert config["model"]["init_args"]["annotator"]["init_args"]["noise_multiplier"] == 50.0
    assert (
        config["model"]["init_args"]["gradient_targets"]["gamma"] is None
        and config["data"]["init_args"]["batch_size"] == 4
    )
    assert config["optimizers"][0] == {**config["optimizers"][0], "class": "Adam", "lr": 0.0003}
    assert any("synthetic" in (item.key or "".join(item.nested_key)) for r in records for item in r.history.item)
    assert accepts(folder)


def datastore(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: a header, then blocks of 32 KiB as LevelDB's logs have them."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    assert content[:4] == b":W&B"
    position, parts = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def logged_config(records: list[Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for record in records:
        kind = record.WhichOneof("record_type")
        source = record.config if kind == "config" else record.run.config if kind == "run" else None
        for item in [] if source is None else source.update:
            config[item.key or item.nested_key[0]] = json.loads(item.value_json)
    return config


def accepts(folder: Path) -> bool:
    """Whether `wandb sync` would take the folder; older versions have no dry run, and there reading it has to do."""
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ})
    shown = done.stdout + done.stderr
    return "No such option" in shown or (done.returncode == 0 and folder.name in shown)


def test_the_offline_runner_makes_each_run_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("base.json").write_text(json.dumps(configuration(None, model={"images": "prior", "generator": None})))
    values = {
        "method": "grid", "name": "tiny", "program": "LightningCLI",
        "command": ["${env}", "${program}", "fit", "--config", "base.json", "--trainer.logger=WandbLogger", "${args}"],
        "parameters": {"model.gradient_targets.dkd_beta": {"values": ["no number", 1.0]}},
        "metric": {"name": "test_split/accuracy", "goal": "maximize"},
    }  # fmt: skip
    Path("tiny.yaml").write_text(
        yaml.safe_dump({**values, "metric": {"name": "test_split/accuracy", "goal": "maximize"}})
    )
    with pytest.raises(SystemExit, match="1 of 2 runs failed"):
        main(["sweep", "tiny.yaml"])
    heading, first, last = csv.reader(Path("runs/sweeps/tiny/ranking.csv").read_text().splitlines())
    assert heading == ["test_split/accuracy", "run", "model.gradient_targets.dkd_beta"]
    assert 0 <= float(first[0]) <= 1 and first[2] == "1.0" and (last[0], last[2]) == ("nan", "no number")
    assert "gradient_targets.dkd_beta" in capsys.readouterr().out
    (done,) = Path("runs/sweeps/tiny").glob("*/done.json")
    assert list(done.parent.rglob("offline-run-*/run-*.wandb")) and list(done.parent.rglob("result.json"))
    before = done.stat().st_mtime_ns
    with pytest.raises(SystemExit):
        main(["sweep", "tiny.yaml"])
    assert done.stat().st_mtime_ns == before and "2/2] done" in capsys.readouterr().out


TWO = {
    "method": "grid", "name": "two", "program": "LightningCLI",
    "command": ["${env}", "${program}", "fit", "--config", "base.yaml", "${args}"],
    "parameters": {"model.gamma": {"values": [1.0, 2.0]}},
}  # fmt: skip


class Runs:
    """Stands in for the command line."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, line: list[str]) -> None:
        self.asked.append(line)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("a: 1")
    monkeypatch.setattr("sweeps.runner.queue.collect", lambda: None)
    Path("two.yaml").write_text(yaml.safe_dump(TWO))
    return Runs()


@pytest.mark.parametrize("goal", ["maximize", "minimize", None])
def test_the_best_comes_first(runs: Runs, goal: str | None) -> None:
    def run(line: list[str]) -> SimpleNamespace:
        gamma = float(line[3].removeprefix("--model.gamma="))
        return SimpleNamespace(trainer=SimpleNamespace(callback_metrics={"val/accuracy": gamma / 4}))

    metric = {"name": "val/accuracy", **({"goal": goal} if goal else {})}  # W&B's own default is to minimize
    Path("two.yaml").write_text(yaml.safe_dump({**TWO, "metric": metric}))
    sweep(["two.yaml"], run=run)
    _, *rows = csv.reader(Path("runs/sweeps/two/ranking.csv").read_text().splitlines())
    found = [(row[0], row[2]) for row in rows]
    assert found == [("0.5", "2.0"), ("0.25", "1.0")][:: 1 if goal == "maximize" else -1]
    Path("two.yaml").write_text(yaml.safe_dump({**TWO, "metric": {"name": "val/accurracy"}}))
    with pytest.raises(RunnerError, match=r"metric\.name must be .*'val/accuracy'.*, got 'val/accurracy'"):
        sweep(["two.yaml"], run=run)


def swept(runs: Runs) -> list[list[str]]:
    runs.asked = []
    sweep(["two.yaml"], run=runs)
    return runs.asked


def test_a_run_is_of_the_values_in_its_files(runs: Runs) -> None:
    assert len(swept(runs)) == 2 and swept(runs) == []
    Path("base.yaml").write_text("# as before\na: 1")
    assert swept(runs) == []
    Path("base.yaml").write_text("a: 2")
    assert len(swept(runs)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "bayes"}, "must be grid"),
        ({"command": ["python", "train.py", "${args}"]}, "must run one of"),
        ({"command": ["LightningCLI", "fit", "${args_json}"]}, "are understood"),
        ({"parameters": {"a": {"min": 0, "max": 1}}}, "needs `value` or `values`"),
        ({"parameters": {"a": 3}}, "needs `value` or `values`"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(FILE.read_text()), **change}))
    with pytest.raises(RunnerError, match=message):
        Sweep.read(path)


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize("way", ["flag", "file"])
def test_nothing_is_selected_by_private_records(tmp_path: Path, way: str, refused: bool) -> None:
    config, path, evaluation = tmp_path / "teacher.yaml", tmp_path / "s.yaml", "validation" if refused else "selection"
    data = {"class_path": "PoissonSampled", "init_args": {"evaluation": evaluation if way == "file" else "test"}}
    config.write_text(yaml.safe_dump({"data": data}))
    own = {"data.evaluation": {"value": evaluation}} if way == "flag" else {}
    command = ["LightningCLI", "fit", f"--config={config}", "${args}"]
    path.write_text(yaml.safe_dump({"method": "grid", "parameters": own, "command": command}))
    with pytest.raises(RunnerError, match=r"data\.evaluation is validation") if refused else nullcontext():
        sweep([str(path), "--dry-run", "--folder", str(tmp_path)], run=lambda _: pytest.fail("it was run"))
