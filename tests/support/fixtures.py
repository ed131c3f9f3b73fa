"""Fixtures of tests that run real fits; a folder of tests takes them by importing them in its `conftest.py`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.runs import QUIET

from lightning_modules.cli import main


@pytest.fixture(scope="session")
def trained_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of the digits, trained once by the command that a user would type, and its ledger in `ledgers/`."""
    folder, before = tmp_path_factory.mktemp("teacher"), Path.cwd()
    os.chdir(folder)
    others = os.environ.pop("TRANSCRIPTION_LEDGERS", None)
    try:
        main(["fit", "--config", "sweeps/teacher_digits.yaml", "--trainer.max_epochs=5", *QUIET])
    finally:
        os.chdir(before)
        if others is not None:
            os.environ["TRANSCRIPTION_LEDGERS"] = others
    return folder / "teachers" / "digits.ckpt"


@pytest.fixture(autouse=True)
def quick_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files in place of figures, which take longest of all in a tiny run; `test_artefacts` has the real ones."""
    if request.path.stem in ("test_artefacts", "test_pipeline"):
        return

    def touch(figure: None, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    monkeypatch.setattr("lightning_modules.callbacks.curves.run_curves", lambda *_, **__: None)
    monkeypatch.setattr("lightning_modules.callbacks.synthetic_images.image_grid", lambda *_, **__: None)
    for module in ("curves", "synthetic_images"):
        monkeypatch.setattr(f"lightning_modules.callbacks.{module}.save_figure", touch)


@pytest.fixture
def folder(tmp_path: Path, trained_teacher: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the teacher in `teachers/digits.ckpt`, and a ledger that knows of its training."""
    (tmp_path / "teachers").mkdir()
    shutil.copyfile(trained_teacher, tmp_path / "teachers" / "digits.ckpt")
    shutil.copytree(trained_teacher.parents[1] / "ledgers", tmp_path / "ledgers")
    monkeypatch.chdir(tmp_path)
    return tmp_path
