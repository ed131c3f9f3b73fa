"""What a fit says while it runs and when it ends, and where its loggers write."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import WandbLogger
from support.data_files import picture
from support.dp_teachers import SMALL
from support.runs import configuration, fit

from datamodules import ImageFolder
from lightning_modules.cli import main
from lightning_modules.cli.fit import describe_runs, outcome, say_how_to_resume
from lightning_modules.training.evaluation import measured_on
from lightning_modules.training.run import LAST
from privacy.account import BudgetExceeded


def said_by_outcome(caplog: pytest.LogCaptureFixture) -> str:
    return next(one.message for one in caplog.records if "of the test split after" in one.message)


@pytest.mark.slow
def test_the_commands_that_a_fit_ends_with_run(folder: Path) -> None:
    Path("student.yaml").write_text(yaml.safe_dump(configuration(steps=2)))
    command = [sys.executable, "-m", "lightning_modules"]
    shown = subprocess.run([*command, "fit", "--config", "student.yaml"], capture_output=True, text=True, check=True)
    lines = (shown.stdout + shown.stderr).splitlines()
    found = [line.split("LightningCLI ", 1)[1] for line in lines if "LightningCLI " in line]
    assert [line.split()[0] for line in found] == ["test", "fit", "export"]
    for line in found:
        words = line.replace(" N", " 2").replace(" DIR", " public").split()
        subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    assert Path("public/student.safetensors").is_file()


CONSTANT = """
import torch
from torch import nn

class Constant(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.logits = nn.Parameter(2 * torch.eye(num_classes)[0])

    def forward(self, images):
        return self.logits.expand(len(images), -1)
"""


def test_a_collapsed_student_and_its_calibration_are_said_wherever_its_accuracy_is(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Path("my.py").write_text(CONSTANT)
    fit(
        configuration(
            steps=1,
            model={"student": {"class_path": "External", "init_args": {"name": "my.py:Constant"}}, "images": "prior"},
        )
    )
    main(["export", "run", "--to", "out", "--network", "my.py:Constant", "--unprotected"])
    written, card = json.loads(Path("run/result.json").read_text()), Path("out/README.md").read_text()
    said = said_by_outcome(caplog)
    assert "COLLAPSED: it predicts one class for 100.0 % of the test images" in said
    assert "--to DIR --network my.py:Constant" in said  # which the export asks for
    assert "It has collapsed" in card and "Expected calibration error: " in card
    assert written["largest_share"] == 1 and 0 < written["calibration_error"] < 1


def test_weights_that_are_not_finite_are_said_to_be_and_not_to_have_collapsed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1e30}}
    with pytest.warns(UserWarning, match="Weights have become NaN or infinite between steps 1 and 2"):
        fit(
            configuration(
                steps=1, epochs=3, model={"student": {"network": SMALL, "optimizer": optimizer}, "images": "prior"}
            )
        )
    said = said_by_outcome(caplog)
    assert "NOT FINITE: weights became NaN or infinite between steps 1 and 2" in said and "COLLAPSED" not in said
    assert json.loads(Path("run/result.json").read_text())["largest_share"] == 1, "it would be said to have collapsed"


def test_what_must_stay_private_is_not_offered_for_publication(tmp_path: Path) -> None:
    measured = measured_on(torch.nn.Identity(), [(torch.eye(2), torch.tensor([0, 0]))], torch.device("cpu"))
    private = {**measured, "method": "Teacher", "dataset": "Digits", "steps": 3, "epsilon_record": "inf"}
    private |= {"class_names": ["a", "b"], "config": {"model": {"init_args": {"network": SMALL}}}}
    bounded = {**private, "method": "DPSGDTeacher", "epsilon_record": 2.0, "statement": "Record-level ε = 2."}
    checkpoint = tmp_path / "last.ckpt"
    unbounded = outcome({**private, "method": "DPDFD"}, folder=tmp_path, checkpoint=checkpoint)
    assert unbounded.endswith("--to DIR --unprotected")  # the export asks for it
    text = outcome(private, folder=tmp_path, checkpoint=checkpoint)
    assert text.startswith("teacher, private, Digits: 50.00 % of the test split after 3 steps\n")
    assert "COLLAPSED" not in text
    assert "must stay private" in text and "export" not in text
    text = outcome(bounded, folder=tmp_path, checkpoint=checkpoint)
    assert "export" in text and "stay private" not in text


def test_what_is_said_on_the_console_is_not_sent_to_wandb(tmp_path: Path) -> None:
    """Warnings about a private teacher, and its accuracy, are said there."""
    given = [None, {"mode": "offline"}, {"console": "wrap"}]
    loggers = [WandbLogger(save_dir=tmp_path, offline=True, settings=one) for one in given]
    describe_runs(loggers, model=BoringModel(), dataset="Digits")
    assert [one._wandb_init["settings"] for one in loggers] == [
        {"console": "off"}, {"console": "off", "mode": "offline"}, {"console": "wrap"},
    ]  # fmt: skip


@pytest.mark.parametrize("bits", [16, 12])
def test_pictures_that_fill_twelve_of_sixteen_bits_are_not_black_without_a_word(folder: Path, bits: int) -> None:
    draw = np.random.default_rng(0)
    for part, label, number in itertools.product(("train", "test"), ("ants", "bees"), range(8)):
        pixels = draw.integers(0, 4096, (8, 8), dtype=np.uint16)
        picture(pixels, Path("pictures", part, label, f"{number}.png"))
    data = ImageFolder(root="pictures", bits=bits, val_fraction=0.4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data.setup("test")
    images = data.test_records.images
    assert (int(images.max()) < 16) is (bits == 16) and (int(images.max()) > 240) is (bits == 12)
    assert any("set bits 12" in str(one.message) for one in said) is (bits == 16)


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="notes of errors are of Python 3.11")
@pytest.mark.parametrize("error", [ValueError(), BudgetExceeded(), OSError()])
def test_what_would_recur_is_not_resumed(tmp_path: Path, error: Exception) -> None:
    (tmp_path / LAST).parent.mkdir()
    (tmp_path / LAST).touch()
    say_how_to_resume(error, folder=tmp_path, checkpoint=str(tmp_path / LAST))
    notes = [f"To resume: LightningCLI fit --resume {tmp_path}"] if isinstance(error, OSError) else []
    assert getattr(error, "__notes__", []) == notes
