"""Anybody's network, by its name: a class or function of another package, or of a file."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from lightning_modules.networks.classifiers import ImageClassifier
from lightning_modules.networks.named_code import look_in_current_folder, named_object


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
        image_shape: Channels, height, width; likewise.
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
        look_in_current_folder()
        target, given = named_object(name), arguments or {}
        if not callable(target):
            raise ValueError(f"{name} must be a class or a function, got {type(target).__name__}")
        types, parameters = _types(target), inspect.signature(target).parameters
        given = {
            key: _meant(value, types.get(key), parameters[key].default if key in parameters else None)
            for key, value in given.items()
        }
        open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        of_data = {"num_classes": num_classes, "image_shape": tuple(image_shape)}
        taken = of_data if open_ended else of_data.keys() & parameters.keys()
        return _called(target, given, {key: of_data[key] for key in of_data if key in taken and key not in given})


def _called(target: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """Call a class or function, without those offered arguments that its errors reject by name."""
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
