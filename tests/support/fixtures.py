"""Fixtures of tests that run real fits; a folder of tests takes them by importing them in its `conftest.py`."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from support.runs import QUIET, shelve, working_in

from lightning_modules.cli import main
from lightning_modules.networks import feature_cache
from lightning_modules.networks.fixed_features import WhitenedFeatures


@pytest.fixture(scope="session")
def trained_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of the digits, trained once by the command that a user would type, and its ledger in `shelved/`.

    Once for all workers: the first that asks trains it in the folder that they share, and the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained_teacher"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed
        if not (folder / "done").exists():
            with working_in(folder):
                main(["fit", "--config", "sweeps/teacher_digits.yaml", "--trainer.max_epochs=5", *QUIET])
            shelve(folder)
            (folder / "done").touch()
    return folder / "teachers" / "digits.ckpt"


@pytest.fixture
def quick_whitening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of 20 images of a prior in place of 2000, which take seconds, where no figure depends on them."""
    statistics = WhitenedFeatures._statistics_of
    monkeypatch.setattr(feature_cache, "_cache", {})  # nor are they kept for others

    def of_few(self: WhitenedFeatures, prior: object, image_shape: object, count: int) -> object:
        return statistics(self, prior, image_shape, min(count, 20))  # type: ignore[arg-type]

    monkeypatch.setattr(WhitenedFeatures, "_statistics_of", of_few)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run or a script writes, it writes in a folder of its own test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def quick_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files in place of figures, which take longest of all in a tiny run; `test_artefacts` has the real ones."""
    if request.path.stem in ("test_artefacts", "test_pipeline"):
        return

    def touch(figure: None, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    monkeypatch.setattr("lightning_modules.callbacks.figures.image_grid", lambda *_, **__: None)
    monkeypatch.setattr("lightning_modules.callbacks.figures.save_figure", touch)


@pytest.fixture(autouse=True)
def quick_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ONNX, as without its extra: it takes seconds. Tests of it ask for `with_onnx`."""
    monkeypatch.setattr("lightning_modules.publishing.onnx._PACKAGES", ("left_out_of_most_tests",))


@pytest.fixture
def with_onnx(quick_exports: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports with ONNX."""
    monkeypatch.setattr("lightning_modules.publishing.onnx._PACKAGES", ("onnx", "onnxscript", "onnxruntime"))


@pytest.fixture
def folder(tmp_path: Path, trained_teacher: Path) -> Path:
    """An empty working folder with the teacher in `teachers/digits.ckpt`, and a ledger that knows of its training."""
    (tmp_path / "teachers").mkdir()
    shutil.copyfile(trained_teacher, tmp_path / "teachers" / "digits.ckpt")
    shutil.copytree(trained_teacher.parents[1] / "shelved", tmp_path / "ledgers")
    return tmp_path
