"""Modes of a network that is asked and not trained: running statistics as they are, or evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["evaluating", "frozen_statistics"]


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


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A block in which a network is in evaluation mode; afterwards it is in the mode that it was in."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
