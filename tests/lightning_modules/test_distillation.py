"""Distillation of a DP-SGD teacher: asked once, fitted for long, its guarantee handed on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import checkpoint, distil, equal, of_digits
from torch import nn

from lightning_modules import Distillation
from lightning_modules.networks import LinearOnFeatures
from lightning_modules.student import StudentConfig


def test_resumed_as_if_never_interrupted(folder: Path) -> None:
    settings: dict[str, Any] = {"class_path": "Distillation", "steps": 4}
    distil("whole", **settings, epochs=2)
    distil("part", **settings)
    distil("part", "--ckpt_path=part/checkpoints/last.ckpt", **settings, epochs=2)
    assert equal(checkpoint("whole")["state_dict"], checkpoint("part")["state_dict"])


class Constant(nn.Module):
    """Answers by brightness: nine of ten images are of class 0."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rank = images.flatten(1).mean(dim=1).argsort().argsort().float() / len(images)
        return torch.nn.functional.one_hot((rank >= 0.9).long(), 10).float() * 2


def _module(**settings: Any) -> Distillation:
    given = {"teacher": Constant(), "pool_size": 300, "batch_size": 100, **settings}
    module: Distillation = of_digits(Distillation, **given)
    module.draw_seed = 0
    module.session.open(private_data="none")
    module._trainer = type("Trainer", (), {"is_global_zero": False, "global_rank": 0})()  # type: ignore[assignment]
    module.setup("fit")
    return module


@pytest.mark.parametrize(("balance", "share"), [(0.0, 0.1), (0.5, 0.25), (1.0, 0.5)])
def test_rare_answers_are_drawn_more_often(balance: float, share: float) -> None:
    _, answers, weights = _module(balance=balance).answer_pool()
    rare = answers.argmax(dim=1) == 1
    assert float(weights[rare].sum() / weights.sum()) == pytest.approx(share, abs=0.01)


def test_a_fixed_front_is_computed_once_and_gives_the_same_logits() -> None:
    network = LinearOnFeatures
    module = _module(student=StudentConfig(network=network))
    features, _, _ = module.answer_pool()
    images = torch.cat([module.draw_images(call, None).half().float() for call in range(3)])
    assert features.shape == (300, *network(num_classes=10, image_shape=(1, 8, 8)).feature_extractor.output_shape)
    assert torch.allclose(module._forward_extracted(features.float()), module.student(images), atol=2e-2)


def test_images_that_tell_little_of_the_teacher_are_warned_of() -> None:
    """The control answers the same images surely, a tenth of them with each class."""

    class Sure(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            rank = images.flatten(1).mean(dim=1).argsort().argsort() * 10 // len(images)
            return 50 * torch.nn.functional.one_hot(rank, 10).float()

    unsuitable = _module()
    with pytest.warns(UserWarning, match="Images of StrokePrior say little to the teacher: 0.0"):
        unsuitable.answer_pool()
    suitable = _module(teacher=Sure())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*say little.*")
        suitable.answer_pool()
