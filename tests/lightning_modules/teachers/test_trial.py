"""A teacher tried on procedural images: what it silently gave wrong students by is refused or named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_modules.teachers import external as trial
from lightning_modules.teachers.config import TeacherConfig
from privacy.mechanisms import NoisyGradients, Shape
from privacy.session import PrivacySession

SHAPE = (1, 8, 8)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(trial, "rank_zero_warn", found.append)
    return found


def tried(network: nn.Module, outputs: Any = "logits", named: str = "model.teacher") -> None:
    teacher = TeacherConfig(path=network, outputs=outputs).load(num_classes=10, image_shape=SHAPE)
    session = PrivacySession(NoisyGradients(), Shape(8, 10))
    teacher.try_external(session, image_shape=SHAPE, prior=None, named=named)
    assert session.uncharged_queries == [trial.TRIAL_ACCESS]


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


def test_outputs_that_are_not_as_stated_are_refused(said: list[str]) -> None:
    torch.manual_seed(0)
    logits = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    probabilities, logarithms = nn.Sequential(logits, nn.Softmax(1)), nn.Sequential(logits, nn.LogSoftmax(1))
    for network, found, stated in (
        (probabilities, "probabilities", "logits"),
        (nn.Sequential(probabilities, Rounded()), "probabilities", "logits"),
        (logits, "logits", "probabilities"),
        (logarithms, "logits", "probabilities"),
    ):
        message = rf"gives {found} for 64 .*\.baseline\.outputs states {stated}.*baseline\.outputs: {found}"
        with pytest.raises(ValueError, match=message):
            tried(network, stated, named="model.generator_phase.baseline")
        tried(network, found)
    assert said == []
