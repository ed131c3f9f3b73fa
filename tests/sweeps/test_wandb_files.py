"""W&B's sweep files are what its server and its agent take, and a run by the agent is whole, and named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
import yaml
from lightning.pytorch.loggers import WandbLogger
from support.runs import QUIET, configuration

import sweeps
from lightning_modules.cli import main
from lightning_modules.training.run import run_folder
from sweeps.runner.fit import RunnerError
from sweeps.runner.sweep import _measured, command, points

SWEEPS = Path(sweeps.__path__[0])
FILES = sorted((SWEEPS / "wandb").glob("*.yaml"))
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
    wandb.finish()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
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


def test_a_run_is_the_agent_s_and_has_its_test_accuracy(folder: Path) -> None:
    values = yaml.safe_load((SWEEPS / "wandb" / "dpdfd_digits.yaml").read_text())
    *_, point = points(values, "dpdfd_digits")
    line = command(values, point)
    assert line[:3] == ["fit", "--config", "sweeps/dpdfd_digits.yaml"]
    assert line[-len(point) :] == [f"--{name}={value}" for name, value in point.items()]  # as the agent writes ${args}
    cli = main([*line, *TINY, *QUIET])
    assert cli is not None and cli.model.images.kind == point["model.images.source"]
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == point["model.student.optimizer.lr"]
    (logger,) = (one for one in cli.trainer.loggers if isinstance(one, WandbLogger))
    run = logger.experiment
    assert run.name == run.group == "DPDFD-Digits"
    record = json.loads((run_folder(cli.trainer) / "result.json").read_text())
    # Once, W&B had the half that is chosen by, and not what is reported.
    assert run.summary["test/accuracy"] == record["accuracy"] and "val/accuracy" in dict(run.summary)
    config = run.config.as_dict()
    assert "mechanism" not in config  # the model's settings stand under `model`, once
    model = config["model"]["init_args"]
    assert "'noise_multiplier': 100.0" in str(model["mechanism"]) and model["gradient_targets"]["gamma"] is None
    assert config["data"]["init_args"]["batch_size"] == 4
    with pytest.raises(RunnerError, match=r"metric.name must be one of .*val/accuracy.*, got 'val/none'"):
        _measured(cli, "val/none")
    (kept,) = Path().rglob("offline-run-*")
    assert list(kept.glob("run-*.wandb")) and list(kept.rglob("*synthetic*.png"))


def test_each_fit_of_a_pipeline_has_a_run_of_its_own(folder: Path) -> None:
    config = configuration(model={"images": "prior"}, trainer={"logger": {"class_path": "WandbLogger"}}, steps=1)
    Path("logged.yaml").write_text(json.dumps(config))
    fit = {"config": "logged.yaml"}
    Path("pipe.yaml").write_text(json.dumps({"fits": {"first": fit, "second": fit}, "folder": "made"}))
    main(["pipeline", "pipe.yaml"])
    assert len([*Path().rglob("offline-run-*")]) == len([*Path().rglob("guarantee.json")]) == 2


def test_a_sweep_runs_each_point_once_without_a_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = yaml.safe_load((SWEEPS / "wandb" / "dpdfd_digits.yaml").read_text())
    small = dict(one.removeprefix("--").split("=") for one in TINY)
    values["parameters"] |= {name: {"value": value} for name, value in small.items()}
    values["parameters"] |= {
        "model.images.source": {"value": "prior"},
        "model.mechanism.noise_multiplier": {"value": 50.0},
    }
    Path("own.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    main(["sweep", "own.yaml"])
    said = capsys.readouterr().out
    assert (
        said.count("] LightningCLI fit --config sweeps/dpdfd_digits.yaml")
        == len(list(Path().rglob("offline-run-*")))
        == 2
    )
    assert "test accuracy" in said and " 0.001 " in said and " 0.003 " in said
    main(["sweep", "own.yaml"])
    assert len(list(Path().rglob("offline-run-*"))) == 2  # nothing is charged twice
    Path("own.yaml").write_text(yaml.safe_dump({**values, "method": "bayes"}))
    with pytest.raises(RunnerError, match="without W&B's server, method must be grid"):
        main(["sweep", "own.yaml"])
