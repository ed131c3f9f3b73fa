"""The commands of a user, each in a process of its own, are one budget.

Nothing is patched, and no variable leads to a ledger but where the user sets one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data_files import write_folders
from support.runs import SMALL, guarantee

from privacy.accounting.composition import compose
from privacy.events import SampledGaussian

pytestmark = pytest.mark.slow

QUIET = ("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")
TEACHER = (
    "fit", "--model=DPSGDTeacher", "--model.noise_multiplier=1", "--model.delta=1e-3", "--trainer.max_epochs=1",
    f"--model.network={json.dumps({**SMALL, 'init_args': {**SMALL['init_args'], 'norm': 'group'}})}",
    "--data=PoissonSampled", "--data.batch_size=10", "--data.steps_per_epoch=2", "--data.dataset=ImageFolder",
    "--data.dataset.size=8", "--data.dataset.channels=1", *QUIET,
)  # fmt: skip


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command in one of the user's working folders, and returns what it printed; `fails` expects an error."""
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    source = str(Path(__file__).parents[3])

    def run(folder: str, *arguments: str, fails: bool = False, **variables: str) -> str:
        (place := tmp_path / folder).mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": source, "XDG_STATE_HOME": str(tmp_path / "state"), **variables}
        line = [sys.executable, "-m", "lightning_modules", *arguments]
        ended = subprocess.run(line, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
        assert (ended.returncode != 0) is fails, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    return run


def test_trainings_on_one_folder_are_one_budget(user: Callable[..., str], tmp_path: Path) -> None:
    """From two working folders, under another name, and with a folder for all ledgers."""
    for part, count in (("train", 30), ("test", 4)):
        write_folders(tmp_path / "pictures" / part, count=count)
    pictures = f"--data.dataset.root={tmp_path / 'pictures'}"
    ways: list[tuple[str, list[str], dict[str, str]]] = [
        ("first", [], {}),
        ("second", [], {}),
        ("third", ["--data.dataset.name=other"], {}),
        ("fourth", [], {"TRANSCRIPTION_LEDGERS": str(tmp_path / "of all")}),
        ("fifth", [], {}),
    ]
    for number, (folder, given, variables) in enumerate(ways, start=1):
        said = user(folder, *TEACHER, pictures, "--trainer.default_root_dir=run", *given, **variables)
        stated = guarantee(str(tmp_path / folder / "run"))
        rate = [one["sample_rate"] for one, _ in stated["releases"]]
        total = compose({SampledGaussian(1.0, rate[0]): 2 * number}, 1e-3).epsilon
        assert stated["epsilon_all_runs"] == pytest.approx(total, rel=1e-6)
        assert stated["trainings"] == number
        assert "Privacy ledger of pictures/train: " in said
