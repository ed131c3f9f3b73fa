"""Restricts which classes a file (a checkpoint, a teacher or an exported folder) may have built by name."""

from __future__ import annotations

import inspect
import sys
from abc import ABC
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from lightning import LightningDataModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchvision.models import get_model_builder, list_models

from lightning_modules.networks.names import look_in_current_folder, named_object

_OURS = ("lightning_modules.", "privacy.", "datamodules.", "sweeps.")
_KNOWN = (*_OURS, "torch.nn.", "torch.optim.", "torchvision.models.")
_KINDS = (nn.Module, Optimizer, LRScheduler, LightningDataModule)
_DATA = ("ckpt", "pt", "pth", "pt2", "safetensors", "onnx", "jsonl")


def require_known_code(spec: Any, *, named: Collection[str] = ()) -> None:
    """Refuse a description of objects from a file if anything but known classes could be built from it.

    Known are the networks, optimizers, data modules and settings of this package, `torch.nn`, `torch.optim` and
    `torchvision.models`, and the names that the user gives in this command. Names are resolved, since a module may
    re-export objects from elsewhere. Every text is checked, since parsers read text as names, as settings and as paths
    of settings files. Nothing outside these packages is imported, and nothing is called.

    Args:
        spec: `class_path` and `init_args`, or any plain values that contain them.
        named: Names that the user gives, as written.

    Raises:
        ValueError: The description names other code.
    """
    text = unknown_code(spec, named=named)
    if text is not None:
        raise ValueError(
            f"it names {text[-80:]!r}, and code that a file names is not run, except networks, optimizers and "
            "settings of this package, torch and torchvision, and names given in this command"
        )


def unknown_code(spec: Any, *, named: Collection[str] = ()) -> str | None:
    """Return the first name that `require_known_code` refuses, or None."""
    look_in_current_folder()  # as building from a name does
    trusted = {_absolute(name) for name in named}
    texts = (text for text in texts_in(spec) if _absolute(text) not in trusted)
    return next((text for text in texts if not _is_known(text)), None)


def texts_in(spec: Any, *, read: frozenset[Path] = frozenset()) -> Iterator[str]:
    """Yield every text in plain values, including settings within a text and in files that a text names."""
    if isinstance(spec, Mapping):
        spec = list(spec.values())
    if isinstance(spec, (list, tuple, set, frozenset)):
        for value in spec:
            yield from texts_in(value, read=read)
    elif isinstance(spec, (str, Path)):
        text = str(spec)
        yield text
        held = _held(text)
        if held != text:
            yield from texts_in(held, read=read)
        file = Path(text)
        try:
            held = _held(file.read_text(encoding="utf-8")) if file not in read and file.is_file() else text
        except (OSError, ValueError):
            return  # a text that is not a path, or a binary file, which holds no settings
        if not isinstance(held, str):
            yield from texts_in(held, read=read | {file})


def _held(text: str) -> Any:
    """Parse a text as YAML; return it unchanged if it is not YAML."""
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError):
        return text


def _absolute(name: str) -> str:
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if colon and file.endswith(".py") else name


def _is_known(text: str) -> bool:
    """Whether a text names no code, or only code that may be built."""
    if ".py:" in text:
        return False
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return True
    if not text.startswith(_KNOWN):
        data = len(parts) == 2 and parts[1] in _DATA and parts[0] in (*sys.stdlib_module_names, "test")
        return data or not _is_there(parts)
    if any(part.startswith("__") for part in parts):
        return False
    try:
        found = named_object(text)
    except ValueError:
        return True  # the name does not exist, so a parser finds nothing either
    if not inspect.isclass(found):
        return any(found is get_model_builder(name) for name in list_models())
    if not f"{found.__module__}.".startswith(_KNOWN):
        return False
    ours = any(ABC in base.__bases__ and base.__module__.startswith(_OURS) for base in found.__mro__)
    return ours or issubclass(found, _KINDS) or (is_dataclass(found) and found.__module__.startswith(_OURS))


def _is_there(parts: list[str]) -> bool:
    """Whether a dotted name begins with an existing module, found without importing it; plain folders do not count."""
    path: Any = None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            found = find_spec(name) if path is None else PathFinder.find_spec(name, path)
        except (ImportError, ValueError):
            return True
        if found is None:
            return False
        if found.origin is not None:
            return True
        path = found.submodule_search_locations
    return False
