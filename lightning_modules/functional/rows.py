"""Rows that are kept, put together as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["joined"]


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors on the CPU, one after another along their first dimension, of the dtype that they have.

    Mixed precision would choose a dtype for them, and in bfloat16 refuses images that are kept in float16.
    """
    with torch.autocast("cpu", enabled=False):
        return torch.cat(list(parts))
