"""What a name of a class or a function stands for: `package.Name`, or `path/to/file.py:Name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


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
            raise ValueError(f"{name}: there is no {part} in it")
        found = getattr(found, part)
    return found


def look_in_current_folder() -> None:
    """Has modules of the current folder found, behind everything that is installed."""
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))


def _imported(name: str) -> tuple[ModuleType, list[str]]:
    """The module that a dotted name begins with, and the rest of the name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name!r} names no class or function: give package.Name, or path/to/file.py:Name")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            return importlib.import_module(module), parts[end:]
        except ModuleNotFoundError as error:
            # Of a module that is there and imports what is not, that is the error.
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise ValueError(f"{name} cannot be imported: {error}") from error
    raise ValueError(f"{name} cannot be imported: no module {parts[0]} is there; of a file give path/to/file.py:Name")


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
        # Not by the loader: its bytecode of a file that was changed within a second is the earlier one's.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[module_name]
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return module
