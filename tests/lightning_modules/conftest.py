from __future__ import annotations

from pathlib import Path

import pytest
from support.fixtures import folder, quick_figures, quick_whitening, trained_teacher

__all__ = ["folder", "quick_figures", "quick_whitening", "trained_teacher"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run or a script writes, it writes in a folder of its own test."""
    monkeypatch.chdir(tmp_path)
