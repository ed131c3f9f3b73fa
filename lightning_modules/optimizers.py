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
        student: Of the student.
        student_lr_scheduler: Stepped once for each of the student's steps. Default: none.
        generator: Of the generator or the refiner.
        generator_lr_scheduler: Stepped once for each of the generator's steps. Default: none.
    """

    student: OptimizerCallable | None = None
    student_lr_scheduler: LRSchedulerCallable | None = None
    generator: OptimizerCallable | None = None
    generator_lr_scheduler: LRSchedulerCallable | None = None


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The default."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)
