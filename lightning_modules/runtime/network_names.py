"""A model's settings as the parser takes them: short forms written out, and networks that it cannot build itself.

jsonargparse takes a factory's first argument for one that the caller gives, so that it can never be set, takes no
untyped ones, and knows no arguments of functions. What it cannot take is handed on as a `ForeignNetwork`.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from lightning_modules.networks.foreign import ForeignNetwork, named_object

__all__ = ["NETWORKS", "find_networks", "with_networks"]

NETWORKS = ("teacher.network", "student.network", "network", "images.generator", "generator_phase.baseline.network")
"""Settings of models that build networks, as dotted names."""

_SHORT = {
    "teacher": "path",
    "student": "network",
    "images": "source",
    "generator_phase.baseline": "path",
    "federation": "name",
}
"""The field that a string stands for. Written out: later settings of other fields add to it instead of replacing it."""

_FOREIGN = f"{ForeignNetwork.__module__}.{ForeignNetwork.__name__}"


def find_networks(args: Sequence[str]) -> list[str]:
    """Arguments of a command in which user-supplied networks are `ForeignNetwork`, in files and flags alike.

    The current folder can be imported from afterwards, behind everything that is installed.

    Args:
        args: Names of settings are those of today.

    Raises:
        ValueError: A file that is named does not exist, cannot be imported, or has no such class.
    """
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))
    found: list[str] = []
    known: dict[str, dict[str, Any]] = {}
    left = list(args)
    while left:
        argument = left.pop(0)
        flag, equals, value = argument.partition("=")
        if not flag.startswith(("--config", "-c", "--model")) or not (equals or left):
            found.append(argument)
            continue
        words = [argument] if equals else [argument, left[0]]
        if flag in ("--config", "-c", "--model"):
            replaced = _content(flag, value if equals else left[0], known)
        else:
            replaced = _flag(flag, value if equals else left[0], known)
        if not equals:
            left.pop(0)
        found += words if replaced is None else [f"--config={json.dumps(replaced, default=str)}"]
    return found


def with_networks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A model's settings with short forms written out, in which user-supplied networks are `ForeignNetwork`."""
    found = dict(settings)
    for path, field in _SHORT.items():
        if _is_short(path, value := _at(found, path)):
            found = _with(found, path, {field: value})
    for path in NETWORKS:
        if (spec := _foreign(_at(found, path))) is not None:
            found = _with(found, path, spec)
    return found


def _is_short(path: str, value: Any) -> bool:
    return isinstance(value, str) and (path, value) != ("generator_phase.baseline", "student")


def _at(settings: Any, path: str) -> Any:
    """The value of a dotted name; None where there is none."""
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _with(settings: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value of a dotted name."""
    name, _, rest = path.partition(".")
    inner = settings.get(name)
    return {**settings, name: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def _content(flag: str, value: str, known: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """A configuration with its networks replaced; None where it has none to replace."""
    text = value.lstrip().startswith("{")
    if flag == "--model" and not text:
        return None
    try:
        content = yaml.safe_load(value if text else Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None  # the parser says what is wrong with it
    if flag == "--model":
        content = {"model": content}
    model = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(model, Mapping):
        return None
    inside = isinstance(model.get("init_args"), Mapping)
    given = model["init_args"] if inside else model
    settings = with_networks(given)
    for path in NETWORKS:
        if (spec := _at(settings, path)) is not None:
            _note(known, path, spec)
    if settings == given:
        return None
    changed = {**content, "model": {**model, "init_args": settings} if inside else settings}
    return changed if text else _files_made_absolute(changed, Path(value).resolve().parent)


def _flag(flag: str, value: str, known: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """A configuration in place of a short form, or of a flag of a user-supplied network; None for every other flag."""
    name = flag.removeprefix("--model.").removeprefix("init_args.")
    if flag.startswith("--model.") and name in _SHORT and not value.lstrip().startswith("{") and _is_short(name, value):
        long = f"{name}.{_SHORT[name]}"
        return _flag(f"--model.{long}", value, known) or _placed(long, value)
    path = next((path for path in NETWORKS if name == path or name.startswith(f"{path}.")), None)
    if path is None or not flag.startswith("--model."):
        return None
    rest = name[len(path) + 1 :]
    if rest in ("", "class_path"):
        given = yaml.safe_load(value) if value.lstrip().startswith("{") else value
        spec = _foreign(given)
        _note(known, path, spec)
        return None if spec is None else _placed(path, spec)
    before = known.get(path)
    if before is None or rest == "help":
        return None
    settings = before["init_args"]
    keys = [key for key in rest.split(".") if key not in ("init_args", "dict_kwargs", "arguments")]
    arguments = inner = json.loads(json.dumps(settings.get("arguments") or {}))
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = yaml.safe_load(value)
    _note(known, path, {"class_path": _FOREIGN, "init_args": {**settings, "arguments": arguments}})
    return _placed(path, known[path])


def _placed(path: str, value: Any) -> dict[str, Any]:
    return {"model": {"init_args": _with({}, path, value)}}


def _note(known: dict[str, dict[str, Any]], path: str, spec: Any) -> None:
    if isinstance(spec, Mapping) and str(spec.get("class_path", "")).rsplit(".", 1)[-1] == ForeignNetwork.__name__:
        known[path] = {"class_path": _FOREIGN, "init_args": dict(spec.get("init_args") or {})}
    else:
        known.pop(path, None)


def _foreign(given: Any) -> dict[str, Any] | None:
    """What stands for a user-supplied network; None for what the parser takes by itself."""
    spec: Any = {"class_path": given} if isinstance(given, str) else given
    if not isinstance(spec, Mapping) or not isinstance(spec.get("class_path"), str):
        return None
    name = spec["class_path"]
    if not _is_foreign(name):
        return None
    arguments: dict[str, Any] = {}
    for group in ("init_args", "dict_kwargs"):
        arguments |= dict(spec.get(group) or {})
    arguments |= {key: value for key, value in spec.items() if key not in ("class_path", "init_args", "dict_kwargs")}
    return {"class_path": _FOREIGN, "init_args": {"name": name, "arguments": arguments}}


def _is_foreign(name: str) -> bool:
    file, colon, _ = name.rpartition(":")
    if not (colon and file.endswith(".py")) and ("." not in name or name.startswith("lightning_modules.")):
        return False
    if not colon and (name.endswith((".yaml", ".yml", ".json")) or Path(name).is_file()):
        return False  # a file of settings
    found = named_object(name)
    if colon or not inspect.isclass(found):
        return callable(found)
    return issubclass(found, nn.Module) and not _parser_takes(found)


def _parser_takes(network: type) -> bool:
    """Whether a class has none but annotated keyword-only parameters, of which the first is one that it is given."""
    parameters = list(inspect.signature(network).parameters.values())
    return (not parameters or parameters[0].name in ("num_classes", "image_shape")) and all(
        parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.annotation is not inspect.Parameter.empty
        for parameter in parameters
    )


def _files_made_absolute(value: Any, folder: Path) -> Any:
    """Settings in which files of settings, which a configuration names relative to itself, are found from everywhere.

    What is handed on by its content has no folder: the parser would look for them in the working folder.
    """
    if isinstance(value, Mapping):
        return {key: _files_made_absolute(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_files_made_absolute(item, folder) for item in value]
    if isinstance(value, str) and value and len(value) < 1024 and "\n" not in value:
        file = folder / value
        if file.is_file() and isinstance(_read(str(file)), Mapping):
            return str(file)
    return value


def _read(path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None  # the parser says what is wrong with it
