"""Batch normalisation utilities: freeze running statistics, or compare a batch with them (LabelDP Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Stops updates of the running statistics; training mode still normalises with the batch's own.

    The generator's update passes images through the student, and the student must not learn from them.
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
def distance_to_statistics(model: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Measures how far the inputs of a network's BatchNorm layers are from the running statistics.

    The distance is ‖mean - running_mean‖₂ + ‖var - running_var‖₂ over the channels of a layer's input, summed over
    layers. Run the network within the block, then call the function that the block is given: it returns the sum, a
    differentiable scalar. Forward hooks record the inputs and are removed at the end of the block.

    Args:
        model: a classifier with BatchNorm. In eval mode its layers normalise with running statistics, in training mode
            with the batch's.

    Raises:
        ValueError: No BatchNorm layer of the model keeps statistics, or one of those that do was not called.
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
    """Runs a classifier on images (N, C, H, W) once and returns its logits (N, c) and `distance_to_statistics`.

    Both are differentiable.

    Raises:
        ValueError: No BatchNorm layer of the model keeps statistics, or one of those that do was not called.
    """
    with distance_to_statistics(model) as distance:
        logits: Tensor = model(images)
    return logits, distance()


def _distance(layer: Any, inputs: Tensor) -> Tensor:
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    # Running variances average the unbiased estimate, which a single value per channel does not have.
    unbiased = int(inputs.numel() > inputs.shape[1])
    variance, mean = torch.var_mean(inputs, dim=axes, correction=unbiased)
    of_mean: Tensor = torch.linalg.vector_norm(mean - layer.running_mean)
    of_variance: Tensor = torch.linalg.vector_norm(variance - layer.running_var)
    return of_mean + of_variance
