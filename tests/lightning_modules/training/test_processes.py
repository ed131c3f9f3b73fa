"""Fits in two processes: the same charges as one, the same weights in both, one ledger; and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, Strategy
from support.processes import TWO, fit_in_processes, in_processes, saved_by
from support.runs import QUIET, checkpoint, configuration, fit, result

from lightning_modules import DPDFD
from lightning_modules.cli import main
from lightning_modules.training.run import check_strategy
from privacy.ledger import Ledger
from privacy.plan import Charge
from privacy.processes import ProcessesError

STEPS = 2
LABELS = {"class_path": "NoisyLabels", "init_args": {}}
VOTES = {"class_path": "NoisyVotes", "init_args": {}}
MEANS = {"class_path": "NoisyMeanResponse", "init_args": {"noise_multiplier": 10.0}}

METHODS: dict[str, dict[str, Any]] = {
    "DPDFD": {"class_path": "DPDFD", "model": {"images": "both", "replay": {"capacity": 20}}},
    "DPSD": {"class_path": "DPSD", "model": {"mechanism": {"smallest": 3}}},
    "LabelDP": {"class_path": "LabelDP", "model": {"mechanism": LABELS, "pretraining_steps": 1}},
    "DGD": {
        "class_path": "DGD",
        "model": {
            "teacher": "teachers/ensemble.ckpt",
            "images": "prior",
            "vae": {"class_path": "ConvVAE", "init_args": {"width": 4, "latent_dim": 8}},
            "queries": 12,  # of which the second batch is half full
            "vae_steps": 1,
            "mechanism": VOTES,
        },
        "epochs": 2,
    },
    "Distillation": {
        "class_path": "Distillation",
        "model": {"teacher": "teachers/ensemble.ckpt", "mechanism": MEANS, "pool_size": 12, "queries": 20},
    },
}


def settings(name: str, folder: str, **changes: Any) -> dict[str, Any]:
    """Of one of the methods, with the callback that leaves what each process has."""
    chosen: dict[str, Any] = {**METHODS[name], **changes}
    config = configuration(folder, steps=STEPS, **chosen)
    config["trainer"]["callbacks"] = [{"class_path": "support.processes.StateOfEach"}]
    return config


def charges(folder: str, path: Path) -> Counter[Charge]:
    """What a run of a ledger was charged for: releases, claims, queries, and how often."""
    run = checkpoint(folder)["distillation"]["charged"]["run"]
    return Ledger(path=path, private_data="Digits/train", run="reader").counts(run=run)


def differing(states: list[dict[str, Any]]) -> list[str]:
    """Weights and buffers that two processes do not have in common."""
    first, second = (state["weights"] for state in states)
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


@pytest.mark.parametrize(
    "names", [("DPDFD", "DGD"), pytest.param(("DPSD", "LabelDP", "Distillation"), marks=pytest.mark.slow)]
)
def test_two_processes_are_charged_as_one_and_end_alike(
    place: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Fits of each method, one after another in the same processes."""

    def fits() -> None:
        warnings.filterwarnings("error", message=".*sync_dist")  # Lightning's, of logs of ours
        for name in names:
            os.environ["TRANSCRIPTION_LEDGERS"] = str(Path("ledgers", name, "two").resolve())
            fit(settings(name, f"{name} in two"), *TWO)
            rank = os.environ["LOCAL_RANK"]
            os.replace(f"process{rank}.pt", f"{name} {rank}.pt")

    in_processes(fits, seconds=150)
    for name in names:
        states = [torch.load(place / f"{name} {rank}.pt", weights_only=True) for rank in range(2)]
        assert not differing(states), name
        assert [state["ledger"] for state in states] == ["Ledger", "LedgerReplica"]
        for key in ("epsilon", "queries", "steps"):
            assert states[0][key] == states[1][key], (name, key)
        monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(Path("ledgers", name, "one").resolve()))
        fit(settings(name, f"{name} in one"))
        one, two = (
            charges(f"{name} in {count}", Path("ledgers", name, count, "Digits-train.jsonl"))
            for count in ("one", "two")
        )
        assert one == two, name
        records = [result(f"{name} in {count}") for count in ("one", "two")]
        for key in ("epsilon_record", "epsilon_published", "queries", "steps", "published_claim", "unit"):
            assert records[0].get(key) == records[1].get(key), (name, key)


class UnsharedDPDFD(DPDFD):
    """Each process follows its own gradient."""

    def descend(self, name: str, loss: torch.Tensor, *, scheduled: bool = True) -> None:
        optimizer = self.optimizer(name)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class FailingDPDFD(DPDFD):
    """One process fails alone, in its second step."""

    def training_step(self, batch: int, batch_idx: int) -> None:
        if self.steps_done == 1 and self.global_rank == 1:
            raise RuntimeError("this process alone")
        super().training_step(batch, batch_idx)


def test_weights_differ_where_gradients_are_not_averaged(place: Path) -> None:
    """The negative control of the comparison above."""
    config = settings("DPDFD", "run", class_path=f"{__name__}.UnsharedDPDFD")
    fit_in_processes(config)
    assert differing([saved_by(0), saved_by(1)])


@pytest.mark.parametrize(
    ("name", "calls"), [("DPSD", 2 * STEPS), pytest.param("Distillation", 3, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_with_another_number_of_processes(place: Path, name: str, calls: int) -> None:
    """The batch is that of all processes together: what a step is charged for does not change."""
    last = "--ckpt_path={}/checkpoints/last.ckpt"
    fit(settings(name, "grows", epochs=1))

    def two() -> None:
        fit(settings(name, "grows", epochs=2), *TWO, last.format("grows"))
        fit(settings(name, "shrinks", epochs=1), *TWO)

    in_processes(two, seconds=120)
    fit(settings(name, "shrinks", epochs=2), last.format("shrinks"))
    for folder in ("grows", "shrinks"):
        assert list(charges(folder, Path("ledgers/Digits-train.jsonl")).values()) == [calls]
        assert checkpoint(folder)["distillation"]["steps_done"] == 2 * STEPS


# --- errors ---


def test_a_refusal_ends_every_process_with_one_message(place: Path) -> None:
    """Each within seconds: whoever went on alone would wait for the others."""

    def refused(case: str, config: dict[str, Any], *arguments: str) -> None:
        path = Path(f"{case} {os.environ['LOCAL_RANK']}.json")
        path.write_text(json.dumps(config), encoding="utf-8")
        sys.argv = ["LightningCLI", "fit", "--config", str(path), *TWO, *arguments]
        print(f"<{case}>")
        begun = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code and time.monotonic() - begun < 30
        print("quiet" if ended.value.code == 1 else ended.value.code)

    def act() -> None:
        config = settings("DPDFD", "run")
        refused("batch", config, "--data.batch_size=7")
        refused("budget", config, "--model.budget.target_epsilon=0.01")
        config["model"]["init_args"]["teacher"]["path"] += os.environ["LOCAL_RANK"].strip("0")  # of one process alone
        refused("teacher", config)

    ended = in_processes(act, seconds=120)
    cases = [end.printed.split("<")[1:] for end in ended]
    for first, second, message in zip(
        *cases, ["multiple of their number 2", "leaves no room", "digits.ckpt1"], strict=True
    ):
        assert message in first, first
        assert "quiet" in second and message not in second, second
    assert not Path("run/checkpoints").exists()


def test_a_process_that_fails_alone_ends_the_others(place: Path) -> None:
    config = settings("DPDFD", "run", class_path=f"{__name__}.FailingDPDFD")
    ended = fit_in_processes(config, check=False)
    assert all(end.code for end in ended)
    assert "this process alone" in ended[1].printed
    # Saving waits for all, and one of them is gone. What was released stays charged.
    assert not Path("run/checkpoints").exists()
    assert saved_by(0)["queries"] >= 8


def test_strategies_and_launchers_that_no_test_covers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(DDPStrategy):
        pass

    def check(strategy: Strategy, size: int = 1) -> None:
        trainer: Any = SimpleNamespace(strategy=strategy, world_size=size)
        check_strategy(trainer, LightningModule())

    check(DDPStrategy())
    for strategy in (Derived(), DDPStrategy(start_method="spawn"), FSDPStrategy()):
        with pytest.raises(ProcessesError, match=r"is not supported: .*--trainer\.strategy ddp"):
            check(strategy)
    # Processes that do not know of each other: each would make the whole run for itself, and charge for it.
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessesError, match=r"--trainer\.devices 2 --trainer\.num_nodes 2"):
        check(DDPStrategy())
    check(DDPStrategy(), size=4)


# --- as it is typed ---


# Processes that are forked, as above, go the same way without importing everything three times more.
@pytest.mark.slow
def test_the_command_line_starts_and_ends_two_processes() -> None:
    fit = ["fit", "--config", "sweeps/teacher_digits.yaml", "--trainer.max_epochs=1", *QUIET, *TWO]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    line = [sys.executable, "-m", "lightning_modules", *fit]
    done = subprocess.run(line, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True, timeout=200)
    assert done.returncode == 0, done.stdout
    assert "Starting with 2 processes" in done.stdout
    assert Path("teachers/digits.ckpt").is_file() and len(list(Path("ledgers").iterdir())) == 1
    (folder,) = Path("runs/teacher_digits").iterdir()
    assert {"config.yaml", "result.json"} <= {path.name for path in folder.iterdir()}
