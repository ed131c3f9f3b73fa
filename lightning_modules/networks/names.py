"""Resolves names of classes and functions: `package.Name`, or `path/to/file.py:Name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def named_object(name: str) -> Any:
    """Resolve a dotted name, or `path/to/file.py:Name`.

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
    """Append the current folder to the import path, after everything that is installed."""
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))


def _imported(name: str) -> tuple[ModuleType, list[str]]:
    """Import the longest module that a dotted name begins with; return it and the rest of the name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name!r} names no class or function: give package.Name, or path/to/file.py:Name")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            return importlib.import_module(module), parts[end:]
        except ModuleNotFoundError as error:
            # The module exists, but something that it imports does not.
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise ValueError(f"{name} cannot be imported: {error}") from error
    raise ValueError(f"{name} cannot be imported: there is no module {parts[0]}; for a file give path/to/file.py:Name")


def _module_of(file: Path, name: str) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"{name}: there is no file {file} (in {Path.cwd()})")
    path = file.resolve()
    # A changed file becomes a new module, so that a notebook can edit it and continue.
    identity = hashlib.sha256(f"{path}|{path.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    module_name = f"_network_file_{identity}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, for the file's imports from its own folder
    try:
        # Not by the loader, which reuses stale bytecode if a file changes within a second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[module_name]
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return module
