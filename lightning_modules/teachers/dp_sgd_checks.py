"""What DP-SGD refuses before any work: settings without meaning, and networks that mix the records of a batch."""

from __future__ import annotations

from opacus.validators import ModuleValidator
from torch import nn

__all__ = ["check_settings", "require_records_apart"]


def check_settings(
    *,
    target_epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    max_grad_norm: float,
    bounding: str,
    stability: float,
    physical_batch_size: int,
    augmentation_multiplicity: int,
    shift: int,
    flip: bool,
    granularity: float | None,
    image_shape: tuple[int, int, int],
) -> None:
    """Checks settings of `DPSGDTeacher`.

    Raises:
        ValueError: One has no meaning, or not beside another.
    """
    if (target_epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"give one of target_epsilon and noise_multiplier, got {target_epsilon} and {noise_multiplier}"
        )
    for name, value in (
        ("target_epsilon", target_epsilon),
        ("noise_multiplier", noise_multiplier),
        ("max_grad_norm", max_grad_norm),
        ("stability", stability),
        ("physical_batch_size", physical_batch_size),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
    if bounding not in ("clip", "normalize"):
        raise ValueError(f"bounding must be clip or normalize, got {bounding!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    if augmentation_multiplicity < 0:
        raise ValueError(f"augmentation_multiplicity must be at least 0, got {augmentation_multiplicity}")
    if augmentation_multiplicity and not 0 <= shift < min(image_shape[1:]):
        raise ValueError(f"shift must be at least 0 and below the sides of images {image_shape}, got {shift}")
    if flip and not augmentation_multiplicity:
        raise ValueError("flip=true mirrors views of a record: set augmentation_multiplicity to 1 or more")
    if granularity is not None and not 0 < granularity <= 1:
        raise ValueError(f"granularity must lie in (0, 1] clipping norms, or be null, got {granularity}")


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
