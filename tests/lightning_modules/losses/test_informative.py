"""The figure that says beforehand whether images suit a teacher."""

from __future__ import annotations

import math

import pytest
import torch
from support.features import linear

from datamodules import Digits
from lightning_modules.losses.functional import informativeness
from lightning_modules.losses.regression import solve_head
from lightning_modules.priors import StrokePrior


def test_sure_answers_of_all_classes_tell_all() -> None:
    assert informativeness(50 * torch.eye(7).repeat(3, 1)) == pytest.approx(1)


def test_unsure_answers_and_answers_of_one_class_tell_nothing() -> None:
    assert informativeness(torch.zeros(20, 7)) == pytest.approx(0, abs=1e-12)
    assert informativeness(50 * torch.eye(7)[[2] * 20]) == pytest.approx(0, abs=1e-12)
    assert informativeness(torch.tensor([[1e30, 0.0]] * 2)) == pytest.approx(0, abs=1e-12)


def test_it_is_the_mutual_information() -> None:
    joint = torch.tensor([[0.4, 0.1], [0.2, 0.3]])  # of two images as likely as each other
    expected = sum(
        p * math.log(p / (row.sum().item() * joint[:, k].sum().item()))
        for row in joint
        for k, p in enumerate(row.tolist())
    )
    assert informativeness((joint / joint.sum(1, keepdim=True)).log()) == pytest.approx(
        expected / math.log(2), rel=1e-6
    )


def test_strokes_suit_a_teacher_of_digits_and_ramps_of_brightness_do_not() -> None:
    data = Digits()
    data.setup("fit")
    images, labels = (torch.cat(parts) for parts in zip(*data.train_dataloader(), strict=True))
    teacher = linear(whitened=True)
    solve_head(teacher, images, labels, penalty=1e-3)
    draw = torch.Generator().manual_seed(0)

    def of(drawn: torch.Tensor) -> float:
        with torch.no_grad():
            return informativeness(2.5 * teacher(drawn))

    strokes = StrokePrior().sample(500, image_shape=(1, 8, 8), generator=draw, device=torch.device("cpu"))
    down, right = torch.randn(2, 500, 1, 1, 1, generator=draw)
    ramp = torch.linspace(-1, 1, 8)
    assert of(strokes) > 0.7 > 0.6 > of((down * ramp[:, None] + right * ramp).clamp(-1, 1))
