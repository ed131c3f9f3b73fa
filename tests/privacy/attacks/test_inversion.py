"""Inversion attacks on digits: what they draw shows the classes of a model that knows them, and of no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from datamodules import Digits
from lightning_modules.priors import StrokePrior
from privacy.attacks import Records
from privacy.attacks.answers import overfitted
from privacy.attacks.inversion import (
    background_inversion,
    data_free_inversion,
    generative_inversion,
    gradient_inversion,
    judged,
)

ATTACKS: dict[str, Callable[[nn.Module, Tensor], Records]] = {
    "gradient": lambda model, _: gradient_inversion(model, **SIZES, image_shape=(1, 8, 8)),
    "background": lambda model, own: background_inversion(model, background=own, **SIZES, steps=100),
    "generative": lambda model, own: generative_inversion(model, background=own, **SIZES, steps=30, search=40),
    "data-free": lambda model, _: data_free_inversion(model, **SIZES, image_shape=(1, 8, 8), steps=50),
}
SIZES: dict[str, Any] = {"num_classes": 10}


class World(NamedTuple):
    """Models, and what their inversions are judged by."""

    trained: nn.Module
    shuffled: nn.Module
    background: Tensor
    judging: dict[str, Any]


@pytest.fixture(scope="module")
def world() -> World:
    data = Digits()
    data.setup("fit")
    data.setup("test")
    train = Records(*data.train_records.__getitems__(range(600)))
    test = Records(*data.test_records.__getitems__(range(362)))
    wrong = Records(train.images, train.labels[torch.randperm(600, generator=torch.Generator().manual_seed(0))])
    background = StrokePrior().sample(
        300, image_shape=(1, 8, 8), generator=torch.Generator().manual_seed(0), device=torch.device("cpu")
    )
    judge = overfitted(test.at(torch.arange(181)), num_classes=10)
    return World(
        overfitted(train, num_classes=10),
        overfitted(wrong, num_classes=10),
        background,
        {"judge": judge, "train": train.images, "test": test.images[181:]},
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_an_inversion_shows_the_classes_of_a_model_that_knows_them(world: World, name: str) -> None:
    """A class is recognised four times as often as by chance; of a model of shuffled labels it is not."""
    drawn = ATTACKS[name](world.trained, world.background)
    assert drawn.images.shape == (80, 1, 8, 8) and drawn.images.abs().max() <= 1
    assert drawn.labels.bincount().tolist() == [8] * 10
    assert judged(drawn, **world.judging).accuracy > 0.4
    blind = judged(ATTACKS[name](world.shuffled, world.background), **world.judging)
    assert blind.accuracy < 0.35


def test_copies_of_training_images_are_noticed(world: World) -> None:
    train, test = world.judging["train"], world.judging["test"]
    labels = torch.zeros(100, dtype=torch.int64)
    copied, fresh = (judged(Records(images[:100], labels), **world.judging) for images in (train, test))
    assert (copied.nearer, copied.distance_train) == (1.0, 0.0) and copied.distance_test > 0
    assert (fresh.nearer, fresh.distance_test) == (0.0, 0.0)
    assert 4 < copied.inception_score <= 10
    halves = judged(
        Records(torch.cat([train[:50], test[:50]]), labels.index_fill(0, torch.arange(50), 1)), **world.judging
    )
    assert (halves.nearer, halves.nearer_error) == (0.5, pytest.approx(0.5))  # one class all of it, the other none
    alike = judged(Records(train[:1].expand(10, -1, -1, -1), labels[:10]), **world.judging)
    assert alike.inception_score == pytest.approx(1.0)
