"""Class and arguments of a published network: just enough to rebuild it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentParser
from torch import nn

from lightning_modules.networks import ForeignNetwork, check_network
from lightning_modules.publishing.errors import ExportError

__all__ = ["Architecture", "build", "with_all_arguments"]

Architecture = Mapping[str, Any]
"""`class_path` and `init_args`, as in a configuration."""


def build(spec: Architecture, *, num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """The network with fresh weights.

    Args:
        spec: With all arguments, see `with_all_arguments`.
        num_classes: c that is expected.
        image_shape: (C, H, W) that is expected.

    Raises:
        ValueError: It cannot be built, or does not give c logits for such images.
    """
    name = str(spec["class_path"])
    made = _imported(name)
    parser = ArgumentParser(exit_on_error=False)
    try:
        if _is_open_ended(made):
            network = made(**spec["init_args"])
        else:
            # Not as a callable of a parser: of those jsonargparse never sets the first argument.
            add = parser.add_class_arguments if inspect.isclass(made) else parser.add_function_arguments
            add(made, "network", fail_untyped=False)
            found = parser.instantiate_classes(parser.parse_object({"network": dict(spec["init_args"])})).network
            network = found if inspect.isclass(made) else made(**vars(found))
    except Exception as error:
        raise ValueError(f"{name} cannot be built with {dict(spec['init_args'])}: {error}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name} must build a torch.nn.Module, got {type(network).__name__}")
    check_network(network, num_classes=num_classes, image_shape=image_shape, name=name)
    return network


def with_all_arguments(spec: Architecture, *, num_classes: int, image_shape: tuple[int, int, int]) -> dict[str, Any]:
    """The same with what it took from the data, so that the class can be called with `init_args` and nothing more.

    Raises:
        ExportError: It names no class.
    """
    if not isinstance(spec, Mapping) or "class_path" not in spec:
        raise ExportError(f"the architecture must be a class_path with init_args, got {spec!r}")
    spec = _by_its_own_name(spec)
    arguments = {**(spec.get("init_args") or {}), **(spec.get("dict_kwargs") or {})}
    made = _imported(str(spec["class_path"]))
    for name, value in (("num_classes", num_classes), ("image_shape", list(image_shape))):
        if name in inspect.signature(made).parameters or (name == "num_classes" and _is_open_ended(made)):
            arguments[name] = value
    if arguments.get("weights") is not None and str(spec["class_path"]).startswith("torchvision."):
        # The published weights take their place, and nothing has to be fetched for them.
        arguments["weights"] = None
        if getattr(made, "__name__", "") in ("googlenet", "inception_v3"):
            arguments.setdefault("transform_input", True)  # what these two do where they are given weights
    if arguments.get("pretrained") and str(spec["class_path"]).startswith("timm."):
        arguments["pretrained"] = False
    return {"class_path": str(spec["class_path"]), "init_args": arguments}


def _by_its_own_name(spec: Architecture) -> Architecture:
    """A user-supplied network as itself, where it can be called with its arguments as they stand.

    Text with dots may stand for a class, which only `ForeignNetwork` resolves.
    """
    if not _is_foreign_network(str(spec["class_path"])):
        return spec
    settings = spec.get("init_args") or {}
    arguments = dict(settings.get("arguments") or {})
    if ":" in str(settings["name"]) or _may_name_a_class(arguments):
        return spec
    return {"class_path": str(settings["name"]), "init_args": arguments}


def _may_name_a_class(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(_may_name_a_class, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_may_name_a_class, value))
    return isinstance(value, str) and "." in value


def _is_foreign_network(path: str) -> bool:
    return path.rpartition(".")[2] == ForeignNetwork.__name__


def _is_open_ended(made: Any) -> bool:
    """Whether it takes more than it names, as torchvision's functions do."""
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(made).parameters.values())


def _imported(class_path: str) -> Any:
    module, _, name = class_path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ExportError(f"the network's class {class_path} cannot be imported: {error}") from error
