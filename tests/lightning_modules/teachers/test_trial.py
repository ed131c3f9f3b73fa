"""A teacher tried on procedural images: what it silently gave wrong students by is refused or named."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks import SmallCNN
from lightning_modules.private_run import PrivateRun
from lightning_modules.teachers import checks
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.teacher_input import TeacherInput
from privacy import GradientAnnotator

SHAPE = (1, 8, 8)
INPUTS = {
    "ours": TeacherInput(),
    "[0, 1]": TeacherInput(range=[0, 1]),
    "[0, 255]": TeacherInput(range=[0, 255]),
    "ImageNet": TeacherInput(mean=[0.449], std=[0.226]),
}


@cache
def trained(inputs: str) -> nn.Module:
    """A classifier of digits that was given pixels as `inputs` says."""
    digits = load_digits()
    images = torch.tensor(digits.images[:1200, None] / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(digits.target[:1200])
    torch.manual_seed(0)
    network = SmallCNN(num_classes=10, image_shape=SHAPE)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(6):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(INPUTS[inputs](images[rows])), labels[rows]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(checks, "rank_zero_warn", found.append)
    return found


def tried(network: nn.Module, stated: str = "ours", outputs: Any = "logits", named: str = "model.teacher") -> None:
    config = TeacherConfig(path=network, input=INPUTS[stated], outputs=outputs)
    teacher = config.load(num_classes=10, image_shape=SHAPE)
    run = PrivateRun(GradientAnnotator())
    checks.try_foreign(teacher, run, image_shape=SHAPE, prior=None, named=named)
    assert run.uncharged_queries == [checks.TRIAL_ACCESS]


@pytest.mark.parametrize("inputs", ["ours", "[0, 1]", "ImageNet"])
def test_the_range_that_it_was_trained_with_is_not_warned_of(said: list[str], inputs: str) -> None:
    tried(trained(inputs), inputs)
    assert said == []


@pytest.mark.parametrize(
    ("inputs", "given", "named", "than"),
    [
        ("[0, 1]", "ours", "model.teacher.input.range: [0, 1]", "pixels in [-1, 1]"),
        ("[0, 255]", "ours", "model.teacher.input.range: [0, 255]", "pixels in [-1, 1]"),
        ("ImageNet", "ours", "model.teacher.input.mean: [0.449] and std: [0.226]", "pixels in [-1, 1]"),
        ("ours", "[0, 1]", "pixels in [-1, 1]", "model.teacher.input.range: [0, 1]"),
    ],
)
def test_another_range_is_warned_of_and_named(said: list[str], inputs: str, given: str, named: str, than: str) -> None:
    tried(trained(inputs), given)
    assert f"with {named} its decisions" in said[0] and f"than with {than}" in said[0]


class Constant(nn.Module):
    def __init__(self, *, jitter: float) -> None:
        super().__init__()
        self.jitter = jitter

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 10)
        logits[:, 3] = 5 + self.jitter * images.flatten(1).mean(dim=1)
        return logits


def test_constants_and_one_class_for_everything_are_named(said: list[str]) -> None:
    tried(Constant(jitter=0.0))
    tried(Constant(jitter=0.1))
    same, one_class = said
    assert "gives the same outputs for 64 procedural images" in same
    assert "one class for all of 64 procedural images" in one_class and "model.teacher.input" in one_class


class Rounded(nn.Module):
    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.half().float()


@pytest.mark.parametrize("inputs", ["ours", "[0, 1]"])
def test_outputs_that_are_not_as_stated_are_refused(said: list[str], inputs: str) -> None:
    logits = trained(inputs)
    probabilities, logarithms = nn.Sequential(logits, nn.Softmax(1)), nn.Sequential(logits, nn.LogSoftmax(1))
    for network, found, wrong in (
        (probabilities, "probabilities", ("logits", "log_probabilities")),
        (nn.Sequential(probabilities, Rounded()), "probabilities", ("logits",)),
        (logits, "logits", ("probabilities", "log_probabilities")),
        (logarithms, "log_probabilities", ("probabilities",)),
    ):
        for stated in wrong:
            message = rf"gives {found} for 64 .*\.baseline\.outputs states {stated}.*baseline\.outputs: {found}"
            with pytest.raises(ValueError, match=message):
                tried(network, inputs, stated, named="model.generator_phase.baseline")
        tried(network, inputs, found)
    tried(logarithms, inputs, "logits")
    assert said == []
