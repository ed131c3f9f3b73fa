"""Batch normalisation when a network is only looked through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["frozen_statistics"]


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Keeps running statistics as they are while the batch's own statistics are still used in training mode.

    The generator's update passes images through the student without the student learning from them.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
