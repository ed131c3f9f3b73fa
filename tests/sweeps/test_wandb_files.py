"""W&B's sweep files are what its server and its agent take, and a run by the agent is whole, and named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.loggers import WandbLogger
from support.data_files import write_mnist
from support.runs import QUIET

import sweeps
from lightning_modules.cli import main
from lightning_modules.cli.wandb_runs import end_wandb_run

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
    end_wandb_run()


def points(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Runs of a file that together have every value of every parameter."""
    choices = {name: entry.get("values") or [entry["value"]] for name, entry in values["parameters"].items()}
    most = max(map(len, choices.values()))
    return [{name: given[number % len(given)] for name, given in choices.items()} for number in range(most)]


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


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    write_mnist(tmp_path / "data", name="MNIST")
    limits = ["--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1", "--trainer.max_epochs=1"]
    main(["fit", "--config", "sweeps/teacher_mnist.yaml", *limits, *QUIET])
    return tmp_path


def test_the_agent_runs_the_real_command(mnist: Path) -> None:
    values = yaml.safe_load((SWEEPS / "wandb" / "dpdfd_mnist.yaml").read_text())
    point = points(values)[0]
    _, program, *arguments = as_the_agent_does(values, point)
    assert program == "LightningCLI"
    cli = main([*arguments, *TINY, *QUIET])
    assert cli is not None and cli.model.images.kind == point["model.images.source"]
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == point["model.student.optimizer.lr"]
    (logger,) = (one for one in cli.trainer.loggers if isinstance(one, WandbLogger))
    run = logger.experiment
    assert run.name == run.group == "DPDFD-MNIST"
    config = run.config.as_dict()
    assert "mechanism" not in config  # the model's settings stand under `model`, once
    model = config["model"]["init_args"]
    assert model["mechanism"]["init_args"]["noise_multiplier"] == 50.0 and model["gradient_targets"]["gamma"] is None
    assert config["data"]["init_args"]["batch_size"] == 4
    end_wandb_run()
    (folder,) = Path().rglob("offline-run-*")
    assert list(folder.glob("run-*.wandb")) and list(folder.rglob("*synthetic*.png"))
