"""Finished runs on digits, made once for all tests of this folder that only read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.dp_teachers import teacher_by_dp_sgd
from support.fixtures import quick_figures, quick_whitening, trained_teacher
from support.runs import copy_runs, distil, shelve, working_in

__all__ = ["quick_figures", "quick_whitening", "trained_teacher"]


@pytest.fixture(scope="session")
def made_runs(trained_teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with these runs:

    `dp`: a teacher by DP-SGD; `bounded`: its student, on a prior; `generated`: its student, with a generator;
    `private`: a private teacher's student whose responses had no noise, with a generator; `prior`: the same on a prior.
    """
    folder = tmp_path_factory.mktemp("made_runs")
    (folder / "teachers").mkdir()
    shutil.copyfile(trained_teacher, folder / "teachers" / "digits.ckpt")
    with working_in(folder) as patch:
        patch.setattr("lightning_modules.callbacks.figures.save_figure", lambda figure, path: path)
        patch.setattr("lightning_modules.callbacks.figures.image_grid", lambda *_, **__: None)
        teacher_by_dp_sgd("dp", target_epsilon=3.0)
        by_dp_sgd = {"teacher": "dp/checkpoints/last.ckpt"}
        distil("bounded", model={**by_dp_sgd, "images": "prior"})
        distil("generated", model=by_dp_sgd)
        distil("private", mechanism={"noise_multiplier": 0.0})
    shelve(folder)
    return folder


@pytest.fixture
def runs(made_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `made_runs` that a test may change, as the working folder."""
    monkeypatch.chdir(copy_runs(made_runs, tmp_path / "work"))
    return tmp_path / "work"
