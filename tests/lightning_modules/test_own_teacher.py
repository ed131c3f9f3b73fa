"""Teachers of anyone's through the command that a user types: read, tried, told on the page, resumed, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil
from torch import nn

from lightning_modules.teachers.external import TRIAL_ACCESS
from lightning_modules.teachers.files import TeacherError
from privacy.identity import CheckpointError

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, channels, pixels, classes, softmax=False):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.out = nn.Linear(4 * pixels * pixels, classes)
        self.softmax = softmax

    def forward(self, images):
        logits = self.out(self.body(images))
        return logits.softmax(dim=1) if self.softmax else logits
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a network's file in another one."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "net.py").write_text(NET)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def network_of(place: Path, *args: Any) -> nn.Module:
    names: dict[str, Any] = {}
    exec((place / "theirs" / "net.py").read_text(), names)
    torch.manual_seed(0)
    network: nn.Module = names["Net"](*args)
    return network


def external(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": "External", "init_args": {"name": name, "arguments": arguments}}


def settings(place: Path, *, classes: int = 10, channels: int = 1, pixels: int = 8, **more: Any) -> dict[str, Any]:
    arguments = {"channels": channels, "pixels": pixels, "classes": classes}
    return {
        "teacher": "teacher.pt",
        "teacher_network": external("../theirs/net.py:Net", arguments),
        "private_data": "theirs",
        "images": "prior",
        **more,
    }


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("lightning_modules.teachers.external.rank_zero_warn", found.append)
    return found


def test_what_was_looked_at_is_told_and_what_was_found_is_not(place: Path, said: list[str]) -> None:
    torch.save(network_of(place, 1, 8, 10).state_dict(), "teacher.pt")
    distil("run", model=settings(place))
    assert f"ACCESSED WITHOUT CHARGE: {TRIAL_ACCESS}" in Path("run/public/guarantee.md").read_text()
    written = [file for file in Path("run").rglob("*") if file.is_file() and "private" not in file.parts]
    assert "model.teacher.input is not stated" in said[0]
    # Neither what a trial found, nor that it found anything, is anywhere.
    for text in said:
        assert not any(text[:60].encode() in file.read_bytes() for file in written)
    # Without the look the page says that there was none.
    said.clear()
    distil("none", model=settings(place, teacher_trial=False))
    distil("as it is", model=settings(place, teacher_input={"range": [-1, 1]}))
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


def test_what_it_takes_is_compared_on_resuming(place: Path) -> None:
    torch.save(network_of(place, 1, 8, 10).state_dict(), "teacher.pt")
    begun = settings(place, teacher_input={"range": [0, 1]})
    distil("run", model=begun)
    resume = "--ckpt_path=run/checkpoints/last.ckpt"
    with pytest.raises(CheckpointError, match=r"model\.teacher.input.range was "):
        distil("run", resume, model={**begun, "teacher_input": {"range": [0, 255]}}, epochs=2)
    gone_on = distil("run", resume, model={**begun, "teacher_trial": False}, epochs=2)
    assert gone_on.model.steps_done == 6
    # That the first part was tried is not forgotten.
    assert TRIAL_ACCESS in gone_on.model.session.uncharged_queries
