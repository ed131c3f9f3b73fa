"""Products with all digits of float32, whatever a run allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["full_float32"]


@contextmanager
def full_float32() -> Iterator[None]:
    """Matrix products and convolutions in float32 proper, not TF32 or less, and those of cuDNN the same each time.

    Runs allow TF32 on a GPU: equal seeds would draw images there that differ from those of a CPU. What was allowed
    before is allowed after.
    """
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(allowed)
