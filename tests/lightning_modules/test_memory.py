"""What a fit holds is let go of when it ends: its features by whoever computed them, the rest by who makes the next."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning import LightningDataModule, LightningModule
from support.dp_teachers import train
from support.features import linear
from torch import nn

from datamodules import Digits, PoissonSampled, Shards, SyntheticSteps
from lightning_modules import Distillation, DPSGDTeacher, TeacherEnsemble
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig

SHAPE = (1, 8, 8)


def coarse(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return linear(num_classes=num_classes, image_shape=image_shape)


@pytest.fixture(autouse=True)
def no_chance_collection() -> Iterator[None]:
    """Cycles go when they are looked for, and not by chance."""
    gc.disable()
    yield
    gc.enable()


def teacher() -> tuple[LightningModule, LightningDataModule, Callable[[Any], Any]]:
    module = DPSGDTeacher(num_classes=10, image_shape=SHAPE, noise_multiplier=1.0, network=coarse)
    data = PoissonSampled(dataset=Digits(), batch_size=100, steps_per_epoch=2)
    return module, data, lambda _: [mapped.inputs for mapped in data._mapped.values()]


def student() -> tuple[LightningModule, LightningDataModule, Callable[[Any], Any]]:
    module = Distillation(
        num_classes=10,
        image_shape=SHAPE,
        batch_size=8,
        teacher=TeacherConfig(path="teachers/digits.ckpt"),
        pool_size=30,
        student=StudentConfig(network=coarse),
    )
    return (
        module,
        SyntheticSteps(dataset=Digits(), steps_per_epoch=2, batch_size=8),
        lambda _: list(module._evaluated.values()),
    )


def ensemble() -> tuple[LightningModule, LightningDataModule, Callable[[Any], Any]]:
    module = TeacherEnsemble(num_classes=10, image_shape=SHAPE, network=coarse, steps=2)
    return module, Shards(dataset=Digits(), num_teachers=4, batch_size=8), lambda _: [module._records.records.inputs]  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [teacher, student, ensemble])
def test_no_features_are_left_where_module_and_trainer_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """In a notebook these live on."""
    module, data, features = make()
    held: list[weakref.ref[Any]] = []
    end = type(module).on_fit_end

    def look(self: LightningModule) -> None:
        held.extend(weakref.ref(values) for values in features(self))
        end(self)

    monkeypatch.setattr(type(module), "on_fit_end", look)
    train(module, data)
    assert held and all(one() is None for one in held)
    assert module.trainer.datamodule is data  # type: ignore[attr-defined]
