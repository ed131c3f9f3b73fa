"""What DP-SGD refuses before any work: invalid settings, and networks that mix the records of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from opacus.validators import ModuleValidator
from torch import nn

from datamodules import PoissonSampled

if TYPE_CHECKING:
    from lightning_modules.teachers.dp_sgd import DPSGDTeacher

__all__ = ["ACCURACY_ACCESS", "check_fit", "check_settings", "refuse_selection", "require_records_apart"]

ACCURACY_ACCESS = (
    "accuracy on held-out private records was measured during training and logged by this run: nothing bounds what "
    "it reveals about them, and it must not be published with the teacher"
)
"""For the guarantee, where the data are evaluated on private records."""


def check_settings(teacher: DPSGDTeacher) -> None:
    """Checks the settings of a teacher.

    Raises:
        ValueError: One is invalid, or not allowed with another.
    """
    if (teacher.target_epsilon is None) == (teacher.noise_multiplier is None):
        raise ValueError(
            f"give one of target_epsilon and noise_multiplier, got {teacher.target_epsilon} and "
            f"{teacher.noise_multiplier}"
        )
    for name in ("target_epsilon", "noise_multiplier", "max_grad_norm", "stability", "physical_batch_size"):
        value = getattr(teacher, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
    if teacher.bounding not in ("clip", "normalize"):
        raise ValueError(f"bounding must be clip or normalize, got {teacher.bounding!r}")
    if not 0 < teacher.delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {teacher.delta}")
    views, shift, shape = teacher.augmentation_multiplicity, teacher.shift, teacher.image_shape
    if views < 0:
        raise ValueError(f"augmentation_multiplicity must be at least 0, got {views}")
    if views and not 0 <= shift < min(shape[1:]):
        raise ValueError(f"shift must be at least 0 and below the sides of images {shape}, got {shift}")
    if teacher.flip and not views:
        raise ValueError("flip=true mirrors views of a record: set augmentation_multiplicity to 1 or more")
    if teacher.granularity is not None and not 0 < teacher.granularity <= 1:
        raise ValueError(f"granularity must lie in (0, 1] clipping norms, or be null, got {teacher.granularity}")


def check_fit(*, precision: str, delta: float, data: PoissonSampled) -> None:
    """Checks the parts of a fit.

    Raises:
        ValueError: Half precision, or δ at or above one over the number of private records.
    """
    if precision not in ("32-true", "64-true"):
        raise ValueError(
            f"trainer.precision must be 32-true or 64-true for DP-SGD, got {precision!r}: in half precision gradients "
            "were measured beyond the norm that they are clipped to"
        )
    if delta >= 1 / data.num_records:
        raise ValueError(
            f"delta must lie below 1/N = {1 / data.num_records:.3g} for {data.private_data}, got {delta:g}"
        )


def refuse_selection(callbacks: Iterable[Any]) -> None:
    """Refuses a callback that chooses by what is measured on private records.

    Raises:
        ValueError: There is one.
    """
    for callback in callbacks:
        if (monitor := getattr(callback, "monitor", None)) is not None:
            raise ValueError(
                f"{type(callback).__name__} chooses by {monitor!r}, which is measured on private records here: a "
                "teacher that was chosen so reveals them beyond its epsilon. Take data.evaluation=test, or leave "
                "the callback out and publish the last step"
            )


def require_records_apart(network: nn.Module) -> None:
    """Refuses trained layers that Opacus knows to mix records, before any data are read; see also `ClippingTrial`.

    Raises:
        ValueError: There is one.
    """
    if problems := ModuleValidator.validate(network):
        raise ValueError(
            f"model.network: DP-SGD needs each record by itself: {problems[0]}. Take GroupNorm or no norm, for "
            "example {class_path: SmallCNN, init_args: {norm: group, activation: tanh}}"
        )
