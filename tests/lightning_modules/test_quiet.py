"""What Lightning says of files that a user may lose reaches the user; where it is false, it is left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from support.runs import distil

LAST = "--ckpt_path=last"


def said(act: Callable[[], object]) -> list[str]:
    """Warnings about files and callbacks."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    words = ("exists and is not empty", "dirpath has changed", "Be aware that when using")
    return [str(one.message) for one in found if any(word in str(one.message) for word in words)]


def test_no_log_of_an_earlier_fit_is_deleted(folder: Path) -> None:
    assert said(lambda: distil("run", epochs=1)) == []
    first = Path("run/metrics.csv").read_text(encoding="utf-8")
    assert said(lambda: distil("run", LAST, epochs=2)) == said(lambda: distil("run", epochs=1)) == []
    assert Path("run/metrics_1.csv").read_text(encoding="utf-8") == first and Path("run/metrics_2.csv").is_file()


def test_a_users_own_logger_and_checkpoint_are_spoken_of(folder: Path) -> None:
    kinds = (CSVLogger, ModelCheckpoint)
    logger, checkpoint = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    own = {
        "logger": {"class_path": logger, "init_args": {"save_dir": "logs", "name": "", "version": ""}},
        "callbacks": [{"class_path": checkpoint, "init_args": {"dirpath": "kept"}}],
    }
    assert said(lambda: distil("run", trainer=own)) == []
    found = said(lambda: distil("run", LAST, trainer=own, epochs=2))
    assert Path("logs/metrics_1.csv").is_file() and not any("Experiment logs" in one for one in found)
    assert any(one.startswith("Checkpoint directory") and "kept" in one for one in found)
    (forgotten,) = said(lambda: distil("run", "--ckpt_path=logs/checkpoints/last.ckpt", epochs=3))
    assert 'Please add the following callbacks: ["ModelCheckpoint' in forgotten


def test_what_is_false_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_modules.quiet import quiet, quiet_evaluation

    false = "The number of training batches (3) is smaller than the logging interval"
    of_a_fit = "The dirpath has changed from 'a' to 'b'"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        quiet()
        for message in (false, of_a_fit, "Experiment logs directory x exists and is not empty"):
            warnings.warn(message, stacklevel=1)
        assert [str(one.message)[:10] for one in found] == ["The dirpat", "Experiment"]
        quiet_evaluation()
        warnings.warn(of_a_fit, stacklevel=1)
    assert len(found) == 2
