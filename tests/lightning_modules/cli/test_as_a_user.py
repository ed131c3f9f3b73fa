"""The commands of a user, each in a process of its own, are one budget.

Nothing is patched, and no variable leads to a ledger but where the user sets one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.data_files import write_folders
from support.runs import SMALL, configuration, guarantee

from lightning_modules.networks import SmallCNN
from privacy.accounting.composition import compose
from privacy.events import Gaussian, SampledGaussian

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


def reserved(place: Path) -> int:
    """Calls of students in all ledgers below a folder."""
    lines = [json.loads(line) for file in place.rglob("*.jsonl") for line in file.read_text().splitlines()]
    blocks = {line["block"]: line["count"] for line in lines if line["event"] == "reserve" and line["queries"]}
    blocks |= {line["block"]: line["used"] for line in lines if line["event"] == "settle"}
    return sum(blocks.values())


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


def test_students_of_one_teacher_are_one_budget(user: Callable[..., str], tmp_path: Path) -> None:
    """The second has a folder for all ledgers, the third another ledger by setting: the fourth is refused."""
    network = SmallCNN(num_classes=10, image_shape=(1, 8, 8), **SMALL["init_args"])  # type: ignore[arg-type]
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    one, three = (compose({Gaussian(8**0.5 * 2 / 20): count}, 1e-5).epsilon for count in (1, 3))
    target = three * 1.01
    teacher = {"path": str(tmp_path / "weights.pt"), "private_data": "faces", "network": SMALL}
    config = configuration(
        model={"teacher": teacher, "images": "prior"},
        mechanism={
            "release": "per_sample_full", "noise_multiplier": 20.0, "target_epsilon": target, "ledger_block": 1,
        },
        steps=1,
    )  # fmt: skip
    (tmp_path / "student.yaml").write_text(json.dumps(config))
    fit = ("fit", f"--config={tmp_path / 'student.yaml'}", *QUIET)
    user("first", *fit)
    assert guarantee(str(tmp_path / "first/run"))["epsilon"] == pytest.approx(one, rel=1e-6)
    user("second", *fit, TRANSCRIPTION_LEDGERS=str(tmp_path / "of all"))
    user("third", *fit, f"--model.budget.ledger={tmp_path / 'mine.jsonl'}")
    assert guarantee(str(tmp_path / "third/run"))["epsilon"] == pytest.approx(three, rel=1e-6)
    said = user("fourth", *fit, fails=True)
    assert re.search(r"error: target_epsilon=\S+ .* leaves no room for one more step", said)
    assert reserved(tmp_path) >= 3
