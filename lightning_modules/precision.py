"""Precision of float32 arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Computes matrix products and convolutions in full float32 instead of TF32, and makes cuDNN deterministic.

    Runs allow TF32 on a GPU, where equal seeds would then draw other images than on a CPU. The previous settings are
    restored on exit.
    """
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(allowed)
