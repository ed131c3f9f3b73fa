"""Small teachers of the digits through the real entry point: private ones, and by DP-SGD."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningDataModule, LightningModule, Trainer
from support.runs import fit, trainer_settings

from datamodules import Digits
from lightning_modules import DPSGDTeacher, Teacher

SMALL = {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 8, "norm": "group", "activation": "tanh"}}
PLAIN_SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}}


class OtherDigits(Digits):
    """The digits under another name."""


def private_teacher(folder: str, *, epochs: int = 1, data: Any = None, **model: Any) -> Teacher:
    """A teacher that nothing bounds, in `folder/checkpoints/last.ckpt`."""
    config = {
        "seed_everything": 3,
        "trainer": trainer_settings(folder, epochs),
        "model": {"class_path": "Teacher", "init_args": {"network": SMALL, **model}},
        "data": data or {"class_path": "Digits"},
    }
    model: Teacher = fit(config).model
    return model


def dp_sgd(
    folder: str = "run", epochs: int = 1, *, data: Any = None, trainer: Any = None, **model: Any
) -> dict[str, Any]:
    """A training by DP-SGD on the digits, three steps an epoch; the arguments override its settings."""
    sampled = {"dataset": {"class_path": "Digits"}, "batch_size": 128, "steps_per_epoch": 3, **(data or {})}
    return {
        "seed_everything": 3,
        "trainer": trainer_settings(folder, epochs, **(trainer or {})),
        "model": {"class_path": "DPSGDTeacher", "init_args": {"network": SMALL, "optimizer": PLAIN_SGD, **model}},
        "data": {"class_path": "PoissonSampled", "init_args": sampled},
    }


def teacher_by_dp_sgd(
    folder: str,
    *arguments: str,
    epochs: int = 2,
    batch: int = 128,
    dataset: str = "Digits",
    evaluation: str = "test",
    callbacks: list[dict[str, Any]] | None = None,
    precision: str = "32-true",
    **model: Any,
) -> DPSGDTeacher:
    """A teacher by DP-SGD, three steps an epoch, in `folder/checkpoints/last.ckpt`."""
    data = {"dataset": {"class_path": dataset}, "batch_size": batch, "evaluation": evaluation}
    trainer = {"precision": precision, "callbacks": callbacks}
    made: DPSGDTeacher = fit(dp_sgd(folder, epochs, data=data, trainer=trainer, **model), *arguments).model
    return made


def train(
    module: LightningModule,
    data: LightningDataModule,
    *,
    epochs: int = 1,
    precision: Any = "32-true",
    resume: str | None = None,
    save: str | None = None,
    callbacks: list[Callback] | None = None,
) -> None:
    """One fit as a script would have it."""
    quiet = {"logger": False, "enable_checkpointing": False, "precision": precision, "callbacks": callbacks}
    trainer = Trainer(**trainer_settings("script", epochs, **quiet))
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    if save is not None:
        trainer.save_checkpoint(save)
