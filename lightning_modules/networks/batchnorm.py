"""Batch normalisation of networks that are queried: statistics kept, or compared with (LabelDP Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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


@contextmanager
def distance_to_statistics(model: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Watches the inputs of a network's BatchNorm layers while it is run within the block.

    For each BatchNorm layer ‖mean - running_mean‖₂ + ‖var - running_var‖₂ over the channels of its input, summed over
    layers. What the block is given returns that sum, a scalar with its graph, once the network has run. The hooks that
    catch the inputs are removed again.

    Args:
        model: a classifier with BatchNorm. In eval mode the inputs are what its running statistics make of the images,
            in training mode what the batch's own do.

    Raises:
        ValueError: if the model has no BatchNorm that keeps statistics, or did not call one of them.
    """
    named = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm))
    layers = {name: layer for name, layer in named if layer.running_mean is not None}
    if not layers:
        raise ValueError(f"model: {type(model).__name__} has no BatchNorm layer to compare: set statistics_weight to 0")
    distances: dict[str, list[Tensor]] = {name: [] for name in layers}

    def total() -> Tensor:
        if silent := [name for name, found in distances.items() if not found]:
            raise ValueError(f"model: {type(model).__name__} does not call its BatchNorm layers {', '.join(silent)}")
        return torch.stack([value for found in distances.values() for value in found]).sum()

    handles = [
        layer.register_forward_pre_hook(
            lambda layer, inputs, found=distances[name]: found.append(_distance(layer, inputs[0].float()))
        )
        for name, layer in layers.items()
    ]
    try:
        yield total
    finally:
        for handle in handles:
            handle.remove()


def logits_and_statistics(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a classifier in eval mode on images (N, C, H, W) once: its logits (N, c), and its `distance_to_statistics`.

    Both have their graph.

    Raises:
        ValueError: if the model has no BatchNorm that keeps statistics, or does not call one of them.
    """
    with distance_to_statistics(model) as distance:
        logits: Tensor = model(images)
    return logits, distance()


def _distance(layer: Any, inputs: Tensor) -> Tensor:
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    # One value per channel has no variance; the running one is of the unbiased estimate.
    unbiased = int(inputs.numel() > inputs.shape[1])
    variance, mean = torch.var_mean(inputs, dim=axes, correction=unbiased)
    of_mean: Tensor = torch.linalg.vector_norm(mean - layer.running_mean)
    of_variance: Tensor = torch.linalg.vector_norm(variance - layer.running_var)
    return of_mean + of_variance
