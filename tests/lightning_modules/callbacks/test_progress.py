"""The line of an epoch has the ε of that epoch's last step, not that of the one before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.dp_teachers import PLAIN_SGD, SMALL, trainer_settings
from support.runs import fit

from lightning_modules.callbacks import progress

EPOCHS = 3


def epochs(model: dict[str, Any], data: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[list[float], Any]:
    """The ε of each epoch's line, and the model."""
    config = {
        "seed_everything": 3,
        "trainer": {**trainer_settings("run", EPOCHS), "enable_progress_bar": None},
        "model": model,
        "data": data,
    }
    made = fit(config).model
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ") and ": " in line]
    return [
        float(figure) for figure in re.findall(r"ε (?:record|of labels) ([\d.e+]+)\b(?!inf)", "\n".join(lines))
    ], made


@pytest.fixture(autouse=True)
def every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = progress.ProgressLines.__init__
    monkeypatch.setattr(progress.ProgressLines, "__init__", lambda self: write(self, seconds=0.0))


def test_of_a_teacher_by_dp_sgd(capsys: pytest.CaptureFixture[str]) -> None:
    shown, made = epochs(
        {
            "class_path": "DPSGDTeacher",
            "init_args": {"network": SMALL, "optimizer": PLAIN_SGD, "noise_multiplier": 1.0},
        },
        {
            "class_path": "PoissonSampled",
            "init_args": {"dataset": {"class_path": "Digits"}, "batch_size": 128, "steps_per_epoch": 2},
        },
        capsys,
    )
    assert len(shown) == EPOCHS and shown == sorted(set(shown))
    assert shown[-1] == pytest.approx(made.epsilon(), rel=1e-2)
    # What the lines had before: the figure of an epoch less.
    assert shown[-2] != pytest.approx(made.epsilon(), rel=1e-2)


def test_of_direct_training(capsys: pytest.CaptureFixture[str]) -> None:
    shown, made = epochs(
        {
            "class_path": "DirectTraining",
            "init_args": {
                "network": SMALL,
                "annotator": {"class_path": "DirectGradientAnnotator", "init_args": {"noise_multiplier": 6.0}},
            },
        },
        {
            "class_path": "PoissonSampled",
            "init_args": {"dataset": {"class_path": "Digits"}, "batch_size": 64, "steps_per_epoch": 4},
        },
        capsys,
    )
    spent = made.annotator.account.epsilon_label()
    assert len(shown) == EPOCHS and shown[-1] == pytest.approx(spent, rel=1e-2)
    assert shown[-2] != pytest.approx(spent, rel=1e-2)
