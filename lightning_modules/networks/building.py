"""Building a user's network from a factory, and checking it before anything is spent on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

DRY_RUN_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)
"""What a network raises on input or arguments that it does not support."""


def build_network(
    factory: Callable[..., nn.Module],
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    name: str = "student",
) -> nn.Module:
    """Call `factory` with what it accepts of `num_classes` and `image_shape`, and check what comes back.

    Any torch classifier will do: this project's take both arguments, torchvision's take only `num_classes`, and a
    factory without arguments takes none. The check runs two blank images through the network in eval mode, so that no
    statistics and no random state change.

    Args:
        factory: a class, a function, or a partial of either (what jsonargparse makes of `class_path` and
            `init_args`).
        num_classes: number of classes c that the data have.
        image_shape: channels, height, width of the data.
        name: the setting's name, for messages.

    Returns:
        The network, in train mode.

    Raises:
        ValueError: if the network cannot take such images or does not give (N, c) finite logits.
    """
    offered: dict[str, Any] = {"num_classes": num_classes, "image_shape": image_shape}
    parameters = inspect.signature(_target(factory)).parameters
    keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = {key: value for key, value in offered.items() if key in parameters and parameters[key].kind in keyword}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        network = call_open_ended(factory, {**offered, **named})
    else:
        network = factory(**named)
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name} must build a torch.nn.Module, got {type(network).__name__}")
    check_network(network, num_classes=num_classes, image_shape=image_shape, name=name)
    return network.train()


def check_network(network: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], name: str) -> None:
    """Check by a dry run in eval mode that blank images (2, C, H, W) give finite logits (2, c).

    Raises:
        ValueError: naming the setting `name`, if the network fails on such images or gives anything else.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    try:
        logits = dry_run(network, torch.zeros(2, *image_shape, device=device))
    except DRY_RUN_ERRORS as error:
        raise ValueError(
            f"{name}: {type(network).__name__} cannot take images of shape {image_shape} (channels, height, width):"
            f" {error}"
        ) from error
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (2, num_classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"{name}: {type(network).__name__} must give one row of {num_classes} logits per image,"
            f" (2, {num_classes}) for two images; got {found}"
        )
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{name}: {type(network).__name__} gives logits that are not finite for blank images")


def dry_run(network: nn.Module, images: Tensor) -> Any:
    """Output of a network for images in eval mode; every module's mode is restored."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            return network(images)
    finally:
        for module, training in modes.items():
            module.training = training


def _target(factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """What is called in the end: jsonargparse wraps a class as `partial(instantiator, ..., cls, **init_args)`."""
    while isinstance(factory, partial):
        factory = next((argument for argument in factory.args if isinstance(argument, type)), factory.func)
    return factory


def call_open_ended(factory: Callable[..., Any], offered: dict[str, Any]) -> Any:
    """Call a factory that takes `**kwargs`, without arguments that it rejects by name: only its errors list them."""
    try:
        return factory(**offered)
    except TypeError as error:
        refused = next((key for key in offered if f"unexpected keyword argument '{key}'" in str(error)), None)
        if refused is None:
            raise
        return call_open_ended(factory, {key: value for key, value in offered.items() if key != refused})
