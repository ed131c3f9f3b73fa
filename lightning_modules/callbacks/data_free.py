"""Properties of a data-free method that callbacks read.

A protocol and not the base class: that class attaches these callbacks, and two modules must not import each other.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol, TypeGuard

import torch
from lightning import LightningModule, Trainer
from torch import nn

from lightning_modules.private_run import PrivateRun
from lightning_modules.runtime.publication import private_folder, public_folder
from lightning_modules.teachers.private_teacher import PrivateModel
from privacy.annotators import Annotator
from privacy.guarantee import Guarantee

__all__ = ["DataFreeModule", "data_free", "figures_folder", "is_data_free"]


class DataFreeModule(Protocol):
    """The part of `DataFreeDistillation` that its callbacks use; see there."""

    annotator: Annotator
    run: PrivateRun
    steps_done: int
    draw_seed: int | None

    @property
    def exportable_student(self) -> nn.Module:
        """The student that is evaluated and published."""

    @property
    def next_calls(self) -> int:
        """Calls of the annotator that the next step makes."""

    @property
    def teacher(self) -> PrivateModel:
        """The private teacher, while a fit runs."""

    @property
    def device(self) -> torch.device:
        """Where the module is."""

    def guarantee(self) -> Guarantee:
        """Current guarantee for this run's artefacts."""

    def published_networks(self) -> dict[str, nn.Module]:
        """Networks that a guarantee of this run covers, by name."""

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """Images to look at, shape (count, C, H, W)."""


def data_free(module: LightningModule) -> DataFreeModule:
    """The module that a callback was attached to, if it is one that it is for.

    Raises:
        TypeError: It is another kind of module.
    """
    if not is_data_free(module):
        raise TypeError(f"this callback is for data-free methods, not for {type(module).__name__}")
    return module


def is_data_free(module: object) -> TypeGuard[DataFreeModule]:
    """Whether a module is a data-free method."""
    return hasattr(module, "published_networks") and isinstance(getattr(module, "annotator", None), Annotator)


def figures_folder(trainer: Trainer, module: DataFreeModule) -> Path:
    """Beside the guarantee where it covers what is drawn, and with what nothing covers where it does not."""
    bounded = math.isfinite(module.run.covered_epsilon())
    return (public_folder(trainer) if bounded else private_folder(trainer)) / "figures"
