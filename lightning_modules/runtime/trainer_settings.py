"""Settings of the trainer that no method here can follow, refused before anything is read or charged."""

from __future__ import annotations

from typing import Any

PRECISIONS = ("32", "32-true", "bf16-mixed", "16-mixed")
"""Networks whole in float32, as images and the annotators' arithmetic are; autocast where a device gains by it."""


def check_trainer_settings(settings: Any, *, automatic_optimization: bool, data_free: bool) -> None:
    """Refuses what Lightning would refuse later in its own words, or fail on.

    Args:
        settings: The trainer's, as parsed.
        automatic_optimization: The model's.
        data_free: Whether it is a method that queries a teacher. Teachers check their own precision.

    Raises:
        ValueError: A precision, an accumulation or a clipping that the model cannot be trained with.
    """
    precision = settings.get("precision")
    if data_free and precision is not None and str(precision) not in PRECISIONS:
        raise ValueError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {precision}")
    if automatic_optimization:
        return
    batches = settings.get("accumulate_grad_batches")
    if batches not in (None, 1):
        raise ValueError(
            f"trainer.accumulate_grad_batches must be 1, got {batches}: the methods step their own optimizers. "
            "Set data.batch_size for larger batches"
        )
    clipped = settings.get("gradient_clip_val")
    if clipped not in (None, 0):
        raise ValueError(
            f"trainer.gradient_clip_val must be null, got {clipped}: the methods step their own optimizers, and "
            "private gradients are bounded by the annotator (model.annotator)"
        )
