"""Frequencies of classes that are public, and what they add to logits in a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["adjusted", "log_prior_of"]

#: How far frequencies may be from adding up to 1: they are written with a few digits.
_ROUNDING = 1e-2


def log_prior_of(class_prior: Sequence[float], *, num_classes: int) -> Tensor:
    """Logarithms of the classes' frequencies, (c,), float32.

    Args:
        class_prior: π, c numbers above 0 that add up to 1 within 1 %.
        num_classes: c.

    Raises:
        ValueError: It is not that.

    >>> log_prior_of([0.5, 0.5], num_classes=2)
    tensor([-0.6931, -0.6931])
    """
    try:
        shares = [float(share) for share in class_prior]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"class_prior must be {num_classes} numbers above 0, one for each class, got {class_prior!r}"
        ) from error
    usable = all(math.isfinite(share) and share > 0 for share in shares)
    if len(shares) != num_classes or not usable or abs(sum(shares) - 1) > _ROUNDING:
        raise ValueError(
            f"class_prior must be {num_classes} numbers above 0 that add up to 1, one for each class, got {shares}"
        )
    # In float64: float32 has no number for the smallest frequencies, and of a logit of minus infinity no finite loss.
    return torch.tensor(shares, dtype=torch.float64).log().float()


def adjusted(logits: Tensor, log_prior: Tensor | None) -> Tensor:
    """Logits (N, c) as the loss takes them: with the logarithms of the frequencies (c,) added, where these are known.

    Menon et al. 2021, "Long-tail learning via logit adjustment", Eq. 10.
    """
    return logits if log_prior is None else logits + log_prior.to(logits)
