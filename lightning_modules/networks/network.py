"""A network as a setting: a name and arguments, from which it is built and checked before any privacy is spent."""

from __future__ import annotations

import inspect
import typing
from argparse import ArgumentError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_modules.networks.names import look_in_current_folder, named_object

DRY_RUN_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)
"""What a network raises on input or arguments that it does not support."""

_OURS = "lightning_modules.networks"
#: Weights and buffers of this process's networks that still exist.
_handed_out = WeakTensorKeyDictionary()
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network as a name and arguments; a plain string is read as the `name`.

    Attributes:
        name: A class of `lightning_modules.networks` (`SmallCNN`), any other class or function (`torchvision.models.
            resnet18`, `my.Net` with `my.py` in the current folder, `path/to/my.py:Net`), or, in a script, the class or
            function itself.
        arguments: Keyword arguments. `num_classes` and `image_shape` come from the data if the network takes them and
            they are not given here. Dotted names of classes or functions are resolved unless the parameter is a string
            (`block: torchvision.models.resnet.BasicBlock`), and a mapping with `class_path` is built.
    """

    name: str | Callable[..., nn.Module]
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", nested(self.arguments or {}))
        if not isinstance(self.name, str):
            # Kept by name if it has one, so that a checkpoint says which network it holds.
            name = f"{getattr(self.name, '__module__', '')}.{getattr(self.name, '__qualname__', '')}"
            try:
                if named_object(name) is self.name:
                    object.__setattr__(self, "name", name)
            except ValueError:
                pass

    @classmethod
    def of(cls, given: Any) -> Network:
        """Makes a network description from a name, plain values, a class or a function."""
        if isinstance(given, Network):
            return given
        return cls(**given) if isinstance(given, Mapping) else cls(name=given)

    @property
    def target(self) -> Callable[..., Any]:
        """The class or function that `name` stands for.

        Raises:
            ValueError: It does not exist.
        """
        if not isinstance(self.name, str):
            return self.name
        if self.name.isidentifier():
            ours = import_module(_OURS)
            if self.name not in ours.__all__:
                raise ValueError(
                    f"there is no network {self.name} in {_OURS}: give package.Name, or path/to/file.py:Name"
                )
            return getattr(ours, self.name)  # type: ignore[no-any-return]
        look_in_current_folder()
        found = named_object(self.name)
        if not callable(found):
            raise ValueError(f"{self.name} must be a class or a function, got {type(found).__name__}")
        return found  # type: ignore[no-any-return]

    def build(self, *, setting: str, **of_data: Any) -> nn.Module:
        """Build the network with new weights; values of `of_data` that it takes are added to its arguments.

        Raises:
            ValueError: The name does not exist, an argument is unknown or missing, or the result is not a new module.
        """
        try:
            target = self.target
        except ValueError as error:
            raise ValueError(f"{setting}: {error}") from error
        parameters = inspect.signature(target).parameters
        open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        named = {key for key, one in parameters.items() if one.kind not in _OPEN}
        for key in self.arguments:
            if key not in named and not open_ended:
                raise ValueError(
                    f"{setting}.arguments: {self.name} takes no argument {key!r}, but {', '.join(parameters) or 'none'}"
                )
        given = {**{key: value for key, value in of_data.items() if key in named}, **self.arguments}
        if missing := sorted(key for key in named - given.keys() if parameters[key].default is inspect.Parameter.empty):
            raise ValueError(
                f"{self.name} needs {', '.join(missing)}: add to {setting}.arguments, for example "
                f"--{setting}.arguments.{missing[0]} ..."
            )
        if inspect.isclass(target) and target.__module__.startswith(_OURS):
            given = _parsed(target, given, f"{setting}.arguments")
        else:
            types = _types(target)
            given = {
                key: _meant(value, types.get(key), parameters[key].default if key in parameters else None)
                for key, value in given.items()
            }
        first = [given.pop(key) for key in named if parameters[key].kind is inspect.Parameter.POSITIONAL_ONLY]
        offered = {key: value for key, value in of_data.items() if key not in given and open_ended}
        built = _called(target, first, given, offered)
        if not isinstance(built, nn.Module):
            raise ValueError(f"{setting} must build a torch.nn.Module, got {type(built).__name__}")
        _refuse_shared(built, f"{setting}: {self.name}")
        return built


def _refuse_shared(network: nn.Module, what: str) -> None:
    """Refuse a network that shares a weight or buffer with another: loading a teacher would write into a student.

    Raises:
        ValueError: naming the shared tensor.
    """
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    taken = {_address(tensor) for tensor in _handed_out} - {0}  # 0 is the address of empty tensors
    for name, tensor in tensors.items():
        if _address(tensor) in taken:
            raise ValueError(f"{what} must build a new network, and {name!r} belongs to another as well: return a copy")
    hand_out(network)


def hand_out(network: nn.Module) -> None:
    """Record the network's weights and buffers, which no network built later may share."""
    _handed_out.update(dict.fromkeys([*network.parameters(), *network.buffers()]))


def _address(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.untyped_storage().data_ptr()


def build_network(
    given: Any, *, num_classes: int, image_shape: tuple[int, int, int], name: str, any_outputs: bool = False
) -> nn.Module:
    """Build and check a classifier for the data, in train mode. See `check_network`.

    Raises:
        ValueError: It cannot be built, cannot take such images, or does not return finite logits (N, c).
    """
    network = Network.of(given).build(setting=name, num_classes=num_classes, image_shape=tuple(image_shape))
    of_data: dict[str, Any] = {"num_classes": num_classes, "image_shape": image_shape}
    check_network(network, **of_data, name=name, any_outputs=any_outputs)
    return network.train()


def check_network(
    network: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], name: str, any_outputs: bool = True
) -> None:
    """Check by a dry run in eval mode that blank images (2, C, H, W) give finite outputs (2, c).

    Raises:
        ValueError: naming the setting `name`, if the network fails on such images, returns anything else or, unless
            `any_outputs`, returns probabilities.
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
            f"{name}: {type(network).__name__} must give {num_classes} logits an image, got {found} for two"
        )
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{name}: {type(network).__name__} gives logits that are not finite for blank images")
    if not any_outputs and bool((logits >= 0).all()) and torch.allclose(logits.sum(dim=1), logits.new_ones(())):
        raise ValueError(f"{name}: {type(network).__name__} must give logits, got probabilities: leave out its softmax")


def dry_run(network: nn.Module, images: Tensor) -> Any:
    """Return a network's output for images in eval mode; afterwards each module is back in its own mode."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            return network(images)
    finally:
        for module, training in modes.items():
            module.training = training


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Move values of options, "/part/of/it": value, to their places in the arguments."""
    found = {key: value for key, value in values.items() if not key.startswith("/")}
    for key, value in values.items():
        if key.startswith("/"):
            *above, last = key[1:].split("/")
            inner = found
            for name in above:
                whole = inner.get(name) or {}
                inner[name] = {"class_path": whole} if isinstance(whole, str) else dict(whole)
                inner = inner[name]
            inner[last] = None if value == "None" else value  # which is how jsonargparse 4.53 reads null
    return found


def _parsed(target: type, given: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Parse the arguments of one of our classes into the types that it declares."""
    parser = _parser(target, setting)
    try:
        built: Any = parser.instantiate(parser.parse_object({setting: dict(given)}))
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    return dict(vars(built[setting]))


@cache
def _parser(target: type, setting: str) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(target, setting, instantiate=False)
    return parser


def _called(target: Callable[..., Any], first: list[Any], given: dict[str, Any], offered: dict[str, Any]) -> Any:
    """Call a function that takes `**kwargs`, dropping the offered arguments that its errors reject by name."""
    try:
        return target(*first, **given, **offered)
    except TypeError as error:
        refused = next((key for key in offered if f"unexpected keyword argument '{key}'" in str(error)), None)
        if refused is None:
            raise
        return _called(target, first, given, {key: value for key, value in offered.items() if key != refused})


def _types(target: Any) -> dict[str, Any]:
    """Types of a function's parameters, as far as they can be resolved."""
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # annotations of other packages may name types that do not exist
        return {}


def _meant(value: Any, annotation: Any = None, default: Any = None) -> Any:
    """Resolve a plain value: build a `class_path` mapping, look up a dotted name; others are returned unchanged."""
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
