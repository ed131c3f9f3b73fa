"""A run's folder: one fit at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_modules.training.run import LOCK, own_folder


def test_a_start_that_fails_leaves_its_number_free(tmp_path: Path) -> None:
    def fail(folder: Path, name: str) -> None:
        with pytest.raises(ValueError, match="no teacher"), own_folder(folder):
            (folder / name).touch()
            raise ValueError("no teacher")

    fail(tmp_path / "version_0", "config.yaml")
    assert not (tmp_path / "version_0").exists()
    fail(tmp_path / "version_0", "last.ckpt")  # a fit that had begun keeps what it has
    assert (tmp_path / "version_0" / "last.ckpt").exists()


def test_who_dies_holds_nothing(tmp_path: Path) -> None:
    if not (pid := os.fork()):
        with own_folder(tmp_path):
            os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / LOCK).exists()
    with own_folder(tmp_path):
        pass
