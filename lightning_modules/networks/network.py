"""Networks as settings: factories, the plain values that describe them, and the checks before any privacy is spent."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from jsonargparse import ArgumentParser, set_parsing_settings
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_modules.named_code import find_named, named_object, texts_in
from lightning_modules.networks.classifiers import ImageClassifier
from lightning_modules.networks.generators import ConvVAE, ImageGenerator

NetworkCallable: TypeAlias = Callable[[int, tuple[int, int, int]], ImageClassifier]
"""Builds a classifier for num_classes and image_shape: a class of `lightning_modules.networks`, `External`, or a
partial of either. In files `class_path` and `init_args`, or the name of the class alone."""
GeneratorCallable: TypeAlias = Callable[[tuple[int, int, int]], ImageGenerator]
"""Builds a generator for image_shape, likewise."""
VAECallable: TypeAlias = Callable[[tuple[int, int, int]], ConvVAE]
"""Builds a VAE for image_shape, likewise."""

DRY_RUN_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)
"""What a network raises on input or arguments that it does not support."""

# Arguments of an external network stay plain values.
set_parsing_settings(instantiate_subclass_spec_in_any=False)
#: Packages whose networks take up to half the time in channels-last memory; others may flatten by `view`.
_CHANNELS_LAST = ("lightning_modules.", "torchvision.", "timm.")
#: Weights and buffers of this process's networks that still exist.
_handed_out = WeakTensorKeyDictionary()


def network_of(spec: Any, kind: Any = NetworkCallable) -> Callable[..., Any]:
    """The factory, of a kind such as `GeneratorCallable`, that plain values describe; a factory is returned unchanged.

    Raises:
        ValueError: They describe none.
    """
    factory: Callable[..., Any] = spec
    if isinstance(spec, (str, Mapping)):
        find_named(texts_in(spec))
        parser, parsed = _parsed(spec, kind)
        factory = parser.instantiate(parsed).network
    return factory


def described(spec: Any) -> dict[str, Any] | None:
    """Plain values for a factory, `class_path` and all `init_args`; None for a function that only a script has.

    Raises:
        ValueError: Plain values that describe no network.
    """
    kind: Any = NetworkCallable
    plain = isinstance(spec, (str, Mapping))
    if not plain:
        target: Any = spec
        settings: dict[str, Any] = {}
        while isinstance(target, partial):
            # Of jsonargparse's own partials the class is the last argument.
            target, settings = (target.args[-1] if target.args else target.func), {**target.keywords, **settings}
        if not inspect.isclass(target) or "<locals>" in target.__qualname__:
            return None
        kinds = {ImageGenerator: GeneratorCallable, ConvVAE: VAECallable}
        kind = next((kinds[base] for base in kinds if issubclass(target, base)), NetworkCallable)
        spec = {"class_path": f"{target.__module__}.{target.__qualname__}", "init_args": settings}
    try:
        found: dict[str, Any] = _parsed(spec, kind)[1].network.as_dict()
    except ValueError:
        if plain:
            raise
        return None  # it has objects of the script
    return found


def _parsed(spec: str | Mapping[str, Any], kind: Any) -> tuple[ArgumentParser, Any]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=kind)
    try:
        return parser, parser.parse_object({"network": dict(spec) if isinstance(spec, Mapping) else spec})
    except Exception as error:  # argparse's own
        raise ValueError(f"no network is described by {spec}: {' '.join(str(error).split())}") from error


def build_network(
    given: Any, *, num_classes: int, image_shape: tuple[int, int, int], name: str, any_outputs: bool = False
) -> nn.Module:
    """Builds and checks a classifier for the data, in train mode. See `check_network`.

    Args:
        given: A factory, or plain values that describe one.
        num_classes: c.
        image_shape: (C, H, W).
        name: Of the setting, for messages.
        any_outputs: Whether it may give anything but logits.

    Raises:
        ValueError: It cannot be built, cannot take such images, or does not return finite logits (N, c).
    """
    try:
        factory = network_of(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    network: nn.Module = built(factory, num_classes, tuple(image_shape), name=name)
    check_network(network, num_classes=num_classes, image_shape=image_shape, name=name, any_outputs=any_outputs)
    return network.train()


def built(factory: Callable[..., Any], *of_data: Any, name: str) -> Any:
    """Calls the factory of a network, of which no weight may belong to another.

    Raises:
        ValueError: It fails, or does not return a new module.
    """
    try:
        network = factory(*of_data)
    except DRY_RUN_ERRORS as error:
        given = f": set {name}.arguments.NAME" if "required positional argument" in str(error) else ""
        raise ValueError(f"{name}: {error}{given}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name} must build a torch.nn.Module, got {type(network).__name__}")
    if type(network).__module__.startswith(_CHANNELS_LAST):
        network = network.to(memory_format=torch.channels_last)
    # Loading a teacher would write into a student that shares a weight or buffer.
    taken = {_address(tensor) for tensor in _handed_out} - {0}  # 0 is the address of empty tensors
    for weight, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if _address(tensor) in taken:
            raise ValueError(f"{name} must build a new network, and {weight!r} belongs to another as well")
    hand_out(network)
    return network


def hand_out(network: nn.Module) -> None:
    """Records the network's weights and buffers, which no network built later may share."""
    _handed_out.update(dict.fromkeys([*network.parameters(), *network.buffers()]))


def _address(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.untyped_storage().data_ptr()


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
def evaluating(network: nn.Module) -> Iterator[None]:
    """Puts a network into evaluation mode within the block, and each part back into its own mode afterwards."""
    modes = {part: part.training for part in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def check_network(
    network: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], name: str, any_outputs: bool = True
) -> None:
    """Checks by a dry run in eval mode that blank images (2, C, H, W) give finite outputs (2, c).

    Raises:
        ValueError: naming the setting `name`, if the network fails on such images, returns anything else or, unless
            `any_outputs`, returns probabilities.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad(), evaluating(network):
            outputs = network(torch.zeros(2, *image_shape, device=device))
    except DRY_RUN_ERRORS as error:
        raise ValueError(
            f"{name}: {type(network).__name__} cannot take images of shape {image_shape} (channels, height, width):"
            f" {error}"
        ) from error
    logits = logits_of(outputs) if any_outputs else outputs
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (2, num_classes):
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"{name}: {type(network).__name__} must give {num_classes} logits an image, got {found} for two images"
        )
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{name}: {type(network).__name__} gives logits that are not finite for blank images")
    if not any_outputs and bool((logits >= 0).all()) and torch.allclose(logits.sum(dim=1), logits.new_ones(())):
        raise ValueError(f"{name}: {type(network).__name__} must give logits, got probabilities: leave out its softmax")


def logits_of(outputs: Any, *, probabilities: bool = False) -> Any:
    """The logits (N, c) in what anybody's network returns; what holds none is returned unchanged.

    They may be `.logits`, an entry `logits` or the only one of a dict, or the first of a tuple. A single output (N, 1)
    or (N,) is for the second of two classes: z becomes (0, z).

    Args:
        outputs: What the network returned.
        probabilities: Whether it gives probabilities: a single p becomes (1 - p, p).
    """
    if isinstance(outputs, Mapping) and ("logits" in outputs or len(outputs) == 1):
        outputs = outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    elif hasattr(outputs, "logits"):
        outputs = outputs.logits
    elif isinstance(outputs, (tuple, list)) and outputs:
        outputs = outputs[0]
    if isinstance(outputs, Tensor) and outputs.shape[1:] in ((), (1,)):
        one = outputs.reshape(-1, 1)
        outputs = torch.cat([1 - one if probabilities else torch.zeros_like(one), one], dim=1)
    return outputs


def named_network(name: str) -> dict[str, Any]:
    """Plain values for a network by its name alone: one of ours (`SmallCNN`), or anybody's (`my.py:Net`)."""
    if name.isidentifier() or name.startswith("lightning_modules."):
        return {"class_path": name}
    return {"class_path": "External", "init_args": {"name": name}}


class External(ImageClassifier):
    """Builds a network of another package (`torchvision.models.resnet18`, `my.Net`) or file (`path/to/my.py:Net`).

    The result is that network itself, of its own class.

    Args:
        num_classes: Number of classes c; passed on if the network takes it and it is not among the arguments.
        image_shape: Channels, height, width; likewise, to timm as `in_chans`.
        name: The class or function.
        arguments: Its keyword arguments. Dotted names of classes or functions are resolved unless the parameter is a
            string (`block: torchvision.models.resnet.BasicBlock`), and a mapping with `class_path` is built.

    Raises:
        ValueError: The name does not exist, or an argument is unknown or missing.
    """

    def __init__(
        self, num_classes: int, image_shape: tuple[int, int, int], *, name: str, arguments: dict[str, Any] | None = None
    ) -> None:
        raise NotImplementedError  # `__new__` returns another class's object

    def __new__(
        cls, num_classes: int, image_shape: tuple[int, int, int], *, name: str, arguments: dict[str, Any] | None = None
    ) -> Any:
        target, given = named_object(name), arguments or {}
        types, parameters = _types(target), inspect.signature(target).parameters
        given = {
            key: _meant(value, types.get(key), parameters[key].default if key in parameters else None)
            for key, value in given.items()
        }
        timm = str(target.__module__).startswith("timm.")  # whose networks take any number of channels if told
        open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        of_data = {"num_classes": num_classes, "image_shape": tuple(image_shape)}
        of_data |= {"in_chans": image_shape[0]} if timm else {}
        taken = of_data if open_ended else of_data.keys() & parameters.keys()
        return _called(target, given, {key: of_data[key] for key in of_data if key in taken and key not in given})


def _called(target: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """Calls a class or function, without those offered arguments that its errors reject by name."""
    try:
        return target(**given, **offered)
    except TypeError as error:
        refused = next((key for key in offered if f"unexpected keyword argument '{key}'" in str(error)), None)
        if refused is None:
            raise
        return _called(target, given, {key: value for key, value in offered.items() if key != refused})


def _types(target: Any) -> dict[str, Any]:
    """Types of a function's parameters, as far as they can be resolved."""
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # annotations of other packages may name types that do not exist
        return {}


def _meant(value: Any, annotation: Any = None, default: Any = None) -> Any:
    """Resolves a plain value: builds a `class_path` mapping, looks up a dotted name; returns others unchanged."""
    if isinstance(value, Mapping) and "class_path" in value and not value.keys() - {"class_path", "init_args"}:
        inner = {key: _meant(item) for key, item in (value.get("init_args") or {}).items()}
        return named_object(value["class_path"])(**inner)
    text = annotation is str or str in typing.get_args(annotation) or isinstance(default, str)
    if text or not isinstance(value, str) or "." not in value:
        return value
    try:
        found = named_object(value)
    except ValueError:
        return value
    return found if callable(found) else value
