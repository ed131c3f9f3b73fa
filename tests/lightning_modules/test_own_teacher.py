"""Teachers of anyone's through the command that a user types: read, tried, told on the page, resumed, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil
from torch import nn

from lightning_modules import DPDFD
from lightning_modules.networks import SmallCNN
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.external import TRIAL_ACCESS
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.identity import CheckpointError


@pytest.fixture
def theirs() -> None:
    """A plain file of weights, which says nothing of itself and answers with several classes."""
    torch.manual_seed(0)
    torch.save(SmallCNN(num_classes=10, image_shape=(1, 8, 8)).state_dict(), "teacher.pt")


def settings(**more: Any) -> dict[str, Any]:
    named = {"teacher": "teacher.pt", "teacher_network": "SmallCNN", "private_data": "theirs"}
    return {**named, "images": "prior", **more}


@pytest.mark.usefixtures("theirs")
def test_what_was_looked_at_is_told_and_what_was_found_is_not(said: list[str]) -> None:
    distil("run", model=settings())
    assert f"ACCESSED WITHOUT CHARGE: {TRIAL_ACCESS}" in Path("run/public/guarantee.md").read_text()
    written = [file for file in Path("run").rglob("*") if file.is_file() and "private" not in file.parts]
    assert "model.teacher.input is not stated" in said[0]
    # Neither what a trial found, nor that it found anything, is anywhere.
    for text in said:
        assert not any(text[:60].encode() in file.read_bytes() for file in written)
    # Without the look the page says that there was none.
    said.clear()
    distil("none", model=settings(teacher_trial=False))
    distil("as it is", model=settings(teacher_input={"range": [-1, 1]}))
    assert said == []
    assert "ACCESSED WITHOUT CHARGE" not in Path("none/public/guarantee.md").read_text()
    assert not Path("none/private").exists()


def test_a_teacher_trained_here_is_not_tried(folder: Path, said: list[str]) -> None:
    assert distil().model.session.uncharged_queries == [] and said == []
    stated = distil("stated", model={"teacher_input": {"size": 8}})
    assert stated.model.session.uncharged_queries == [TRIAL_ACCESS]


@pytest.mark.parametrize("other", [{"range": [0, 1]}, {"mean": 0.0, "std": 1.0}])
def test_a_teacher_trained_here_takes_no_other_pixels(folder: Path, other: dict[str, Any]) -> None:
    with pytest.raises(TeacherError, match=r"was trained here, on pixels in \[-1, 1\]"):
        distil(model={"teacher_input": other})


class Viewing(nn.Module):
    """Flattens by `view`, which takes no channels-last images."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 8 * 8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.convolution(images).view(len(images), -1))
        return found


def test_networks_that_flatten_by_view_teach_and_are_taught() -> None:
    student: Any = {"network": lambda *_: Viewing()}
    module = DPDFD(
        num_classes=10, image_shape=(3, 8, 8), batch_size=4, teacher=TeacherConfig(path=Viewing()), student=student
    )  # fmt: skip
    module.draw_seed = 0
    images = module.draw_images(0, module.draw_latents(0))
    teacher = module.read_teacher()
    assert isinstance(teacher, PrivateTeacher) and teacher.logits(images).shape == module(images).shape == (4, 10)


@pytest.mark.usefixtures("theirs")
def test_what_it_takes_is_compared_on_resuming() -> None:
    begun = settings(teacher_input={"range": [0, 1]})
    distil("run", model=begun)
    resume = "--ckpt_path=run/checkpoints/last.ckpt"
    with pytest.raises(CheckpointError, match=r"model\.teacher.input.range was "):
        distil("run", resume, model={**begun, "teacher_input": {"range": [0, 255]}}, epochs=2)
    gone_on = distil("run", resume, model={**begun, "teacher_trial": False}, epochs=2)
    assert gone_on.model.steps_done == 6
    # That the first part was tried is not forgotten.
    assert TRIAL_ACCESS in gone_on.model.session.uncharged_queries
