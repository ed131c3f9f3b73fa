"""Whatever ends a fit, what was computed can be gone on with and what was released is counted."""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kills import forked, released
from support.runs import checkpoint, configuration, counted, csv_rows, guarantee, result, working_in

from lightning_modules.cli import main
from privacy.accounting.composition import compose
from privacy.plan import Charge

STEPS, EPOCHS, BLOCK = 6, 5, 7
LAST = "run/checkpoints/last.ckpt"


def settings(folder: str = "run", *, epochs: int = EPOCHS, **trainer: Any) -> dict[str, Any]:
    """A fit that writes each release down, and whose noise is that of its step."""
    return configuration(
        folder,
        class_path="support.kills.TracedDPDFD",
        model={"images": "prior"},
        mechanism={
            "noise_multiplier": 50.0,
            "ledger_block": BLOCK,
            "noise": {"class_path": "support.kills.TracedNoise", "init_args": {"seed": 5}},
        },
        trainer=trainer,
        steps=STEPS,
        epochs=epochs,
    )


@pytest.fixture
def given(folder: Path) -> Path:
    """The folder of a test, with the configuration of `settings` in `given.json`."""
    Path("given.json").write_text(json.dumps(settings()), encoding="utf-8")
    return folder


FIT = ("fit", "--config", "given.json")


@pytest.fixture(scope="module")
def whole(trained_teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of the same fit that nothing has interrupted."""
    with working_in(tmp_path_factory.mktemp("whole")):
        Path("given.json").write_text(json.dumps(settings()), encoding="utf-8")
        teacher = f"--model.teacher.path={trained_teacher}"
        main([*FIT, teacher, "--model.budget.ledger=own.jsonl"])
        assert released() == STEPS * EPOCHS
        return checkpoint()


def require_same_end(whole: dict[str, Any]) -> None:
    """Weights, generator's and student's, and counted steps as without interruption."""
    ended = checkpoint()
    assert ended["distillation"]["steps_done"] == STEPS * EPOCHS
    assert ended["state_dict"].keys() == whole["state_dict"].keys()
    assert all(torch.equal(value, whole["state_dict"][name]) for name, value in ended["state_dict"].items())


def require_nothing_forgotten(counts: Counter[Charge], *, kills: int) -> None:
    """ε never below that of all releases, and above it by at most a reservation for each kill."""
    (charge,) = counts
    made, stated = released(), counts[charge]
    assert made <= stated <= made + kills * BLOCK, (made, stated)
    assert compose({charge.release: stated}, 1e-5).epsilon >= compose({charge.release: made}, 1e-5).epsilon


def _become_the_real_command() -> None:
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lightning_modules", *FIT, "--ckpt_path=last"]
    os.execve(sys.executable, command, environment)


@pytest.mark.parametrize(("kills", "epochs"), [(2, 1), pytest.param(20, 0, marks=pytest.mark.slow)])
def test_kills_forget_no_release_and_change_no_weight(
    given: Path, whole: dict[str, Any], kills: int, epochs: int
) -> None:
    """In the second epoch of an attempt, whose first has saved, what follows is done again; and at any moment."""
    draw, hit = random.Random(kills), 0
    for number in range(kills):
        fit = forked(*FIT, "--ckpt_path=last", before=_become_the_real_command if number % 5 == 4 else lambda: None)
        # A quarter of them at no special moment, of the start too; the others some steps later.
        wanted = released() + epochs * STEPS + draw.randint(1, 3 if epochs else STEPS)
        end = time.monotonic() + (draw.uniform(0, 3) if number % 4 == 2 else 300)
        while fit.running() and released() < wanted and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02 * draw.random())
        hit += fit.kill() == -signal.SIGKILL
        if epochs or Path(LAST).exists():
            torch.load(LAST, weights_only=True)
    assert hit >= 0.75 * kills  # the others came too late, to a fit that had ended
    assert forked(*FIT, "--ckpt_path=last").status(seconds=600) == 0
    require_same_end(whole)
    counts = counted()
    require_nothing_forgotten(counts, kills=hit)
    assert float(guarantee()["epsilon"]) >= compose({next(iter(counts)).release: released()}, 1e-5).epsilon
    # Counted by the steps that the last checkpoint knows of, releases of steps that were done again are forgotten.
    with pytest.raises(AssertionError):
        require_nothing_forgotten(Counter({next(iter(counts)): STEPS * EPOCHS}), kills=kills)
    # Each step stands once in the curves.
    steps = [int(row["step"]) for row in csv_rows("run/metrics.csv") if row["train/student_loss"]]
    assert sorted(steps) == sorted(set(steps)) and steps[-1] == STEPS * EPOCHS - 1


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_says_how_to_go_on(given: Path, whole: dict[str, Any], number: int, status: int) -> None:
    fit = forked(*FIT)
    fit.until(lambda: released() >= STEPS + 2)
    assert fit.kill(number) == status, fit.said
    saved = checkpoint()["distillation"]["steps_done"]
    assert saved >= STEPS + 1
    last = fit.said.rstrip().splitlines()[-1]
    said, resume = last.split("To resume: LightningCLI ")
    assert said in ("", "INFO: ")  # as Lightning's messages are written
    assert resume == "fit --config run/config.yaml --ckpt_path run/checkpoints/last.ckpt"  # it names own code
    main(shlex.split(resume))
    assert checkpoint()["distillation"]["steps_done"] == STEPS * EPOCHS
    require_nothing_forgotten(counted(), kills=0)
    if number == signal.SIGTERM:  # at the end of a step; SIGINT may come within one, whose student has moved
        require_same_end(whole)


def test_a_disk_that_is_full_leaves_the_checkpoint_before(given: Path) -> None:
    main([*FIT, "--trainer.max_epochs=1"])
    before = Path(LAST).read_bytes()
    size = len(before) // 2
    assert size > 3 * Path("ledgers/Digits-train.jsonl").stat().st_size  # the ledger can still be written

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    fit = forked(*FIT, "--ckpt_path=last", "--trainer.max_epochs=2", before=fill)
    assert fit.status() == 1
    assert "File too large" in fit.said and "Traceback" not in fit.said
    assert fit.said.rstrip().splitlines()[-1].startswith("To resume: LightningCLI fit ")
    assert Path(LAST).read_bytes() == before and checkpoint()["distillation"]["steps_done"] == STEPS
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["last.ckpt"]
    main([*FIT, "--ckpt_path=last"])
    require_nothing_forgotten(counted(), kills=1)


def test_two_fits_of_one_folder_and_two_without_one(given: Path) -> None:
    fit = forked(*FIT, "--trainer.max_epochs=200")
    fit.until(lambda: released() >= 1)
    second = forked(*FIT, log=Path("second.txt"))
    assert second.status() == 1
    assert "run is the folder of a fit that is running" in second.said
    assert fit.kill() == -signal.SIGKILL
    config = settings(epochs=1)
    del config["trainer"]["default_root_dir"]
    Path("given.json").write_text(json.dumps(config), encoding="utf-8")
    # A killed fit holds nothing, and a fit without a folder gets a new one, also one that goes on from another.
    main(FIT)
    (runs,) = Path("runs").iterdir()
    main([*FIT, f"--ckpt_path={runs}/version_0/checkpoints/last.ckpt", "--trainer.max_epochs=2"])
    assert [result(f"{runs}/{one}")["steps"] for one in ("version_0", "version_1")] == [STEPS, 2 * STEPS]
