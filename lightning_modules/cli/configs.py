"""Finds configuration files, including those of the installed package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

_CONFIG = ("--config", "-c")


def find_config(path: str) -> str:
    """Return `path` if it exists, else that file in the installed `sweeps` package, else `path` unchanged."""
    parts = Path(path).parts
    if Path(path).exists() or parts[:1] != ("sweeps",):
        return path
    packaged = Path(str(resources.files("sweeps"))).joinpath(*parts[1:])
    return str(packaged) if packaged.is_file() else path


def find_configs(args: Sequence[str]) -> list[str]:
    """Replace the values of `--config` in command-line arguments by `find_config`.

    Raises:
        ValueError: A file does not exist.
    """
    found = list(args)
    for position, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        if option not in _CONFIG or not (equals or position + 1 < len(args)):
            continue
        position, value = (position, value) if equals else (position + 1, args[position + 1])
        if value.endswith((".yaml", ".yml", ".json")) and "{" not in value:
            if not Path(file := find_config(value)).exists():
                raise ValueError(f"{option} {value}: there is no such file")
            found[position] = f"{option}={file}" if equals else file
    return found
