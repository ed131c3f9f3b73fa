"""What every test needs, set before torch is imported: one thread, no display, no network."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where a test has two threads, neither spins for the other
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
# What fixtures of a session train writes its ledger here; each test has a folder of its own.
os.environ["TRANSCRIPTION_LEDGERS"] = tempfile.mkdtemp(prefix="ledgers-")
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-")

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected: by this process, unless it only hands out tests to others."""
    if config.getoption("dist", "no") != "no":
        return
    import hypothesis
    import torch

    torch.set_num_threads(1)
    # The same examples each time, and no deadline: a contended machine is slow, not wrong.
    hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("project")


@pytest.fixture(autouse=True)
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the ledgers that this test writes, its own."""
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "ledgers"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "ledgers"
