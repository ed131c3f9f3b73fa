"""Finding the sweeps that come with the installed package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

__all__ = ["find_config", "find_configs"]


def find_config(path: str) -> str:
    """`path` where it exists; else the file of that name under the installed `sweeps` package; else `path` as it is."""
    parts = Path(path).parts
    if not Path(path).exists() and parts[:1] == ("sweeps",):
        packaged = resources.files("sweeps").joinpath(*parts[1:])
        if packaged.is_file():
            return str(packaged)
    return path


def find_configs(args: Sequence[str]) -> list[str]:
    """Command-line arguments with the values of `--config` looked up by `find_config`."""
    found = list(args)
    for position, argument in enumerate(found):
        if argument in ("--config", "-c") and position + 1 < len(found):
            found[position + 1] = find_config(found[position + 1])
        elif argument.startswith("--config="):
            found[position] = "--config=" + find_config(argument.removeprefix("--config="))
    return found
