from __future__ import annotations

from pathlib import Path

import pytest
from support.ensembles import ensemble_file
from support.fixtures import folder, here, quick_exports, quick_figures, quick_whitening, trained_teacher, with_onnx
from support.runs import SMALL

__all__ = ["folder", "here", "quick_exports", "quick_figures", "quick_whitening", "trained_teacher", "with_onnx"]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is warned of a teacher from elsewhere."""
    found: list[str] = []
    monkeypatch.setattr("lightning_modules.teachers.external.rank_zero_warn", found.append)
    return found


@pytest.fixture(scope="session")
def trained_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of three teachers of the digits, trained once."""
    return ensemble_file(tmp_path_factory.mktemp("ensemble"), network=SMALL, num_teachers=3, steps=20)


@pytest.fixture
def place(folder: Path, trained_ensemble: Path) -> Path:
    """A working folder with `teachers/digits.ckpt` and `teachers/ensemble.ckpt`."""
    (folder / "teachers" / "ensemble.ckpt").write_bytes(trained_ensemble.read_bytes())
    return folder
