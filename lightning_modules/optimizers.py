"""Optimizers and schedules of a method's networks, by what they step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable

__all__ = ["Optimizers", "adam"]


@dataclass(frozen=True, kw_only=True)
class Optimizers:
    """Optimizers of the student and of what makes its images; each is Adam at rate 1e-3 where none is given.

    Attributes:
        student: Builds the student's optimizer; null is Adam at 1e-3.
        student_lr_scheduler: Builds its schedule, stepped once for each of the student's steps; null is none.
        generator: Builds the optimizer of the generator or the refiner; null is Adam at 1e-3.
        generator_lr_scheduler: Builds its schedule, stepped once for each of the generator's steps; null is none.
    """

    student: OptimizerCallable | None = None
    student_lr_scheduler: LRSchedulerCallable | None = None
    generator: OptimizerCallable | None = None
    generator_lr_scheduler: LRSchedulerCallable | None = None


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Adam with rate 1e-3."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)
