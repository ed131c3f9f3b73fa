"""A teacher tried on procedural images: what it silently gave wrong students by is refused or named."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks import SmallCNN, TwoConvNet
from lightning_modules.priors import StrokePrior
from lightning_modules.teachers.teacher_input import OURS, TeacherInput
from lightning_modules.teachers.trial import trial_images, try_teacher

SHAPE = (1, 8, 8)
INPUTS = {
    "ours": OURS,
    "[0, 1]": TeacherInput(range=[0, 1]),
    "[0, 255]": TeacherInput(range=[0, 255]),
    "ImageNet": TeacherInput(mean=[0.449], std=[0.226]),
}


@cache
def trained(kind: type[nn.Module], inputs: str) -> nn.Module:
    """A classifier of digits that was given pixels as `inputs` says."""
    digits = load_digits()
    images = torch.tensor(digits.images[:1200, None] / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(digits.target[:1200])
    torch.manual_seed(0)
    network = kind(num_classes=10, image_shape=SHAPE)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(6):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(INPUTS[inputs](images[rows])), labels[rows]).backward()
            optimizer.step()
    return network.eval()


def tried(network: nn.Module, inputs: TeacherInput = OURS, outputs: Any = "logits") -> list[str]:
    return try_teacher(
        network.eval(), trial_images(SHAPE, None), inputs=inputs, outputs=outputs, whose="teacher x",
        named="model.teacher.input",
    )  # fmt: skip


@pytest.mark.parametrize("kind", [SmallCNN, TwoConvNet])
@pytest.mark.parametrize("inputs", ["ours", "[0, 1]", "ImageNet"])
def test_the_range_that_it_was_trained_with_is_not_warned_of(kind: type[nn.Module], inputs: str) -> None:
    assert tried(trained(kind, inputs), INPUTS[inputs]) == []


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ("[0, 1]", "with model.teacher.input.range: [0, 1] its decisions"),
        ("[0, 255]", "with model.teacher.input.range: [0, 255] its decisions"),
        ("ImageNet", "with model.teacher.input.mean: [0.449] and std: [0.226] its decisions"),
    ],
)
def test_another_range_is_warned_of_and_named(inputs: str, named: str) -> None:
    found = tried(trained(SmallCNN, inputs))
    assert named in found[0] and "than with pixels in [-1, 1]" in found[0]


def test_a_range_that_was_stated_in_vain_is_warned_of() -> None:
    found = tried(trained(SmallCNN, "ours"), INPUTS["[0, 1]"])
    assert "with pixels in [-1, 1] its decisions" in found[0]
    assert "than with model.teacher.input.range: [0, 1]" in found[0]


class Constant(nn.Module):
    def __init__(self, *, jitter: float) -> None:
        super().__init__()
        self.jitter = jitter

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 10)
        logits[:, 3] = 5 + self.jitter * images.flatten(1).mean(dim=1)
        return logits


def test_constants_and_one_class_for_everything_are_named() -> None:
    assert "gives the same outputs for 64 procedural images" in tried(Constant(jitter=0.0))[0]
    (found,) = tried(Constant(jitter=0.1))
    assert "one class for all of 64 procedural images" in found and "model.teacher.input" in found


@pytest.mark.parametrize("inputs", ["ours", "[0, 1]"])
def test_outputs_that_are_not_as_stated_are_refused(inputs: str) -> None:
    logits = trained(SmallCNN, inputs)
    probabilities, logarithms = nn.Sequential(logits, nn.Softmax(1)), nn.Sequential(logits, nn.LogSoftmax(1))
    for stated in ("logits", "log_probabilities"):
        with pytest.raises(
            ValueError, match=r"teacher x gives probabilities.*State model\.teacher\.outputs: probabilities"
        ):
            tried(probabilities, INPUTS[inputs], stated)
    with pytest.raises(ValueError, match=r"gives no probabilities.*State model\.teacher\.outputs: logits"):
        tried(logits, INPUTS[inputs], "probabilities")
    with pytest.raises(ValueError, match=r"gives no probabilities.*State model\.teacher\.outputs: log_probabilities"):
        tried(logarithms, INPUTS[inputs], "probabilities")
    with pytest.raises(ValueError, match=r"gives no log-probabilities.*State model\.teacher\.outputs: logits"):
        tried(logits, INPUTS[inputs], "log_probabilities")
    for network, stated in (
        (probabilities, "probabilities"),
        (logarithms, "log_probabilities"),
        (logarithms, "logits"),
    ):
        assert tried(network, INPUTS[inputs], stated) == []
    # In half precision too.
    with pytest.raises(ValueError, match="gives probabilities"):
        tried(nn.Sequential(probabilities, Rounded()), INPUTS[inputs])


class Rounded(nn.Module):
    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.half().float()


def test_the_setting_of_a_baseline_is_named() -> None:
    with pytest.raises(ValueError, match=r"State model\.generator_phase\.baseline\.outputs: probabilities"):
        try_teacher(
            nn.Sequential(trained(SmallCNN, "ours"), nn.Softmax(1)), trial_images(SHAPE, None), inputs=OURS,
            outputs="logits", whose="x", named="model.generator_phase.baseline.input",
        )  # fmt: skip


def test_images_are_the_same_ones_each_time_and_disturb_no_draws() -> None:
    state = torch.get_rng_state()
    images = trial_images((3, 16, 16), StrokePrior())
    assert torch.equal(images, trial_images((3, 16, 16), None)) and images.shape == (64, 3, 16, 16)
    assert torch.equal(torch.get_rng_state(), state)
