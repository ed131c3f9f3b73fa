"""A run's folder: one fit at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lightning import Trainer

from lightning_modules.callbacks import PrivacyCallback, ResultRecord
from lightning_modules.training.run import LOCK, RunFolderError, missing_callbacks, own_folder


def test_a_folder_that_is_held_is_refused_by_name_and_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    refused = pytest.raises(RunFolderError, match="run is the folder of a fit that is running")
    with own_folder(folder), refused, own_folder(folder):
        raise AssertionError("two fits hold it")
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


def test_a_start_that_fails_leaves_its_number_free(tmp_path: Path) -> None:
    def fail(folder: Path, name: str) -> None:
        with pytest.raises(ValueError, match="no teacher"), own_folder(folder):
            (folder / name).touch()
            raise ValueError("no teacher")

    fail(tmp_path / "version_0", "config.yaml")
    assert not (tmp_path / "version_0").exists()
    fail(tmp_path / "version_0", "last.ckpt")  # a fit that had begun keeps what it has
    assert (tmp_path / "version_0" / "last.ckpt").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(RunFolderError, match=r"file/run cannot be written")
    with refused, own_folder(tmp_path / "file" / "run"):
        raise AssertionError("it was written")


def test_a_trainer_keeps_the_callbacks_that_it_has() -> None:
    """Lightning would replace them, with the curve of the fit before."""
    trainer = Trainer(callbacks=[own := ResultRecord()], logger=False, accelerator="cpu", enable_checkpointing=False)
    assert [type(one) for one in missing_callbacks(trainer, ResultRecord, PrivacyCallback)] == [PrivacyCallback]
    assert own in trainer.callbacks  # type: ignore[attr-defined]
