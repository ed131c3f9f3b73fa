"""User-supplied networks: a class or a function by its dotted name, or from a Python file, with all its arguments."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from lightning_modules.networks.building import call_open_ended

__all__ = ["ForeignNetwork", "named_object"]

_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ForeignNetwork(nn.Module):
    """Network built by a user-supplied class or function. The command line substitutes it for such a name.

    Calling this class gives the network itself, not an object of this class.

    Args:
        num_classes: c, given to a network that takes it by this name, unless `arguments` has it.
        name: `torchvision.models.resnet18`, `my.Net` with `my.py` in the current folder, or `path/to/my.py:Net`.
        arguments: By name. Text with dots that names a class or a function stands for it where the parameter is not
            text (`block: torchvision.models.resnet.BasicBlock`), and a mapping with `class_path` for an object.
        image_shape: (C, H, W), given likewise.

    Raises:
        ValueError: Nothing of that name, an argument that it does not take, or one that is missing.
    """

    def __new__(  # type: ignore[misc]  # the network itself
        cls,
        *,
        num_classes: int = 10,  # the first: what the parser leaves to the caller of a factory
        name: str,
        arguments: dict[str, Any] | None = None,
        image_shape: tuple[int, int, int] = (1, 28, 28),
    ) -> nn.Module:
        return _build(name=name, arguments=arguments, num_classes=num_classes, image_shape=image_shape)


def _build(
    *,
    name: str,
    arguments: Mapping[str, Any] | None,
    num_classes: int,
    image_shape: tuple[int, int, int],
) -> nn.Module:
    build = named_object(name)
    if not callable(build):
        raise ValueError(f"{name} is no class or function, got {type(build).__name__}")
    parameters = inspect.signature(build).parameters
    types = _types(build)
    given = {
        key: _meant(value, annotation=types.get(key), default=parameters[key].default if key in parameters else None)
        for key, value in (arguments or {}).items()
    }
    offered = {"num_classes": num_classes, "image_shape": tuple(image_shape)}
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    _require_known(name, given, parameters, open_ended=open_ended)
    for key, value in offered.items():
        if key in parameters and parameters[key].kind not in _OPEN:
            given.setdefault(key, value)
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in _OPEN and key not in given
    ]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}: {_how_to_give(missing[0])}")
    positional = [key for key, one in parameters.items() if one.kind is inspect.Parameter.POSITIONAL_ONLY]
    first = [given.pop(key) for key in positional if key in given]
    left = {key: value for key, value in offered.items() if key not in parameters and key not in given}
    made = call_open_ended(partial(build, *first, **given), left if open_ended else {})
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name} must build a torch.nn.Module, got {type(made).__name__}")
    return made


def _how_to_give(argument: str) -> str:
    return (
        f"add to its init_args, such as {argument}: ..., or to the command, such as "
        f"--model.teacher.network.{argument} ... of a teacher and --model.student.network.{argument} ... of a student"
    )


def _require_known(
    name: str, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], *, open_ended: bool
) -> None:
    for key in given:
        if key in parameters or open_ended:
            continue
        near = difflib.get_close_matches(key, parameters, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"{name} takes no argument {key!r}; it takes {', '.join(parameters) or 'none'}.{hint}")


def _types(build: Any) -> dict[str, Any]:
    """Types of the parameters, as far as they are known."""
    function = build.__init__ if inspect.isclass(build) else build
    try:
        return typing.get_type_hints(function)
    except Exception:  # user-supplied annotations may name what does not exist
        return {}


def _meant(value: Any, *, annotation: Any, default: Any) -> Any:
    """A plain value as what it stands for."""
    if isinstance(value, Mapping) and "class_path" in value and not value.keys() - {"class_path", "init_args"}:
        settings = value.get("init_args") or {}
        inner = {key: _meant(item, annotation=None, default=None) for key, item in settings.items()}
        return named_object(value["class_path"])(**inner)
    text = annotation is str or str in typing.get_args(annotation) or isinstance(default, str)
    if text or not isinstance(value, str) or "." not in value:
        return value
    try:
        found = named_object(value)
    except ValueError:
        return value
    return found if inspect.isclass(found) or callable(found) else value


def named_object(name: str) -> Any:
    """What a dotted name, or `path/to/file.py:Name`, stands for.

    Raises:
        ValueError: It does not exist.
    """
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        found: Any = _module_of(Path(file), name)
        parts = attribute.split(".")
    else:
        found, parts = _imported(name)
    for part in parts:
        if not hasattr(found, part):
            public = [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
            near = difflib.get_close_matches(part, public, n=1)
            raise ValueError(f"{name}: there is no {part} in it.{f' Did you mean {near[0]}?' if near else ''}")
        found = getattr(found, part)
    return found


def _imported(name: str) -> tuple[ModuleType, list[str]]:
    """The module that a dotted name begins with, and the rest of the name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name!r} is no name of a class or function: give package.Name, or path/to/file.py:Name")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            return importlib.import_module(module), parts[end:]
        except ModuleNotFoundError as error:
            # Of a module that is there and imports what is not, that is the error.
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise ValueError(f"{name} cannot be imported: {error}") from error
    raise ValueError(
        f"{name} cannot be imported: there is no module {parts[0]} in the current folder or the environment. Of a file "
        "elsewhere give path/to/file.py:Name"
    )


def _module_of(file: Path, name: str) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"{name}: there is no file {file} (in {Path.cwd()})")
    path = file.resolve()
    # A file that was changed is another module: a notebook edits it and continues.
    identity = hashlib.sha256(f"{path}|{path.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    module_name = f"_network_file_{identity}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # behind all else: for what the file imports from beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return module
