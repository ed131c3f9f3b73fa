"""A run's folder: one fit at a time, and none left behind by a fit that could not begin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_modules.runtime.csv_logger import ContinuedCSVLogger, RunCSVLogger
from lightning_modules.runtime.run_folder import LOCK, RunFolderError, claim_folder, own_folder


def test_a_folder_that_is_held_is_refused_by_name_and_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with own_folder(folder):
        held = rf"run is the folder of a fit .*process {os.getpid()} on"
        with pytest.raises(RunFolderError, match=held), own_folder(folder):
            raise AssertionError("two fits hold it")
        assert (folder / LOCK).exists()
    assert list(folder.iterdir()) == []
    with own_folder(folder):
        pass


def test_who_dies_holds_nothing(tmp_path: Path) -> None:
    if not (pid := os.fork()):
        with own_folder(tmp_path):
            os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / LOCK).exists()
    with own_folder(tmp_path):
        pass


def _fail(folder: Path, write: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="no teacher"), own_folder(folder):
        write()
        raise ValueError("no teacher")


def test_a_failed_start_leaves_no_folder_and_a_failed_fit_does(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "method" / "version_0"
    _fail(folder, lambda: (folder / "config.yaml").write_text("a: 1"))
    assert list(tmp_path.iterdir()) == []
    _fail(folder, lambda: (folder / "checkpoints").mkdir())
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]
    # What was there before the fit stays, whatever it is.
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("of an earlier run")
    _fail(other, lambda: None)
    assert (other / "config.yaml").read_text() == "of an earlier run"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(RunFolderError, match=r"file/run cannot be written .*trainer\.default_root_dir")
    with refused, own_folder(tmp_path / "file" / "run"):
        raise AssertionError("it was written")


def test_no_two_runs_are_given_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def number() -> int:
        # Both have looked before either has made its folder, as Lightning's own would find it.
        monkeypatch.setattr("lightning.fabric.loggers.csv_logs._is_dir", lambda *_, **__: False)
        return int(RunCSVLogger(save_dir=tmp_path, name="method").version)

    assert [number(), number(), number()] == [0, 1, 2]
    monkeypatch.setattr("lightning_modules.runtime.csv_logger.claim_folder", lambda folder: [folder])
    assert [number(), number()] == [0, 0]  # the mutant
    assert claim_folder(tmp_path / "method" / "version_0") is None


def test_curves_survive_a_kill_within_a_row(tmp_path: Path) -> None:
    def log(logger: RunCSVLogger, *steps: int) -> list[str]:
        for step in steps:
            logger.log_metrics({"loss": 0.5, **({"accuracy": 1.0} if step > 2 else {})}, step)
        logger.save()
        return (tmp_path / "metrics.csv").read_text().splitlines()

    def continued(before: int | None = None) -> ContinuedCSVLogger:
        return ContinuedCSVLogger(save_dir=tmp_path, name="", version="", before_step=before)

    lines = log(RunCSVLogger(save_dir=tmp_path, name="", version=""), 0, 1, 2)
    assert len(lines) == 4
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("0.")
    # Step 2 is done again, and a new column comes.
    assert log(continued(2), 2, 3) == ["accuracy,loss,step", ",0.5,0", ",0.5,1", ",0.5,2", "1.0,0.5,3"]
    assert len(log(continued(), 4)) == 6
    # A fit that begins anew in the same folder takes the rows away with its first own, and not before.
    fresh = RunCSVLogger(save_dir=tmp_path, name="", version="")
    assert fresh.experiment and len((tmp_path / "metrics.csv").read_text().splitlines()) == 6
    assert log(fresh, 0) == ["loss,step", "0.5,0"]
