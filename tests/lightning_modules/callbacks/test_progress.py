"""The line of an epoch has the ε of that epoch's last step, not that of the one before."""

from __future__ import annotations

import re

import pytest
from support.dp_teachers import PLAIN_SGD, SMALL, trainer_settings
from support.runs import fit

from lightning_modules.callbacks import progress

EPOCHS = 3


TEACHER = {
    "class_path": "DPSGDTeacher",
    "init_args": {"network": SMALL, "optimizer": PLAIN_SGD, "noise_multiplier": 1.0},
}


def test_the_last_line_has_the_figure_of_the_last_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_APART", 0.0)
    data = {"dataset": {"class_path": "Digits"}, "batch_size": 128, "steps_per_epoch": 3}
    config = {
        "seed_everything": 3,
        "trainer": {**trainer_settings("run", EPOCHS), "enable_progress_bar": None},
        "model": TEACHER,
        "data": {"class_path": "PoissonSampled", "init_args": data},
    }
    made = fit(config).model
    out = capsys.readouterr().out.splitlines()
    assert out.count("step 2 of 9, about 0 min to go") == 1  # before an epoch has ended
    lines = [line for line in out if line.startswith("epoch ") and ": " in line]
    epsilons = re.findall(r"privacy/epsilon (\d[\d.e+]*)\b", "\n".join(lines))
    shown = [float(epsilon) for epsilon in epsilons]
    spent = made.epsilon()
    assert len(shown) == EPOCHS and shown == sorted(set(shown))
    assert shown[-1] == pytest.approx(spent, rel=1e-2)
    # What the lines had before: the figure of an epoch less.
    assert shown[-2] != pytest.approx(spent, rel=1e-2)
