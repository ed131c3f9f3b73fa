"""Finding the sweeps that come with the installed package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from lightning_modules.runtime.names import nearest

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
    """Command-line arguments with the values of `--config` looked up by `find_config`.

    Raises:
        ValueError: A file that does not exist.
    """
    found = list(args)
    for position, argument in enumerate(found):
        if argument in ("--config", "-c") and position + 1 < len(found):
            found[position + 1] = _existing(found[position + 1])
        elif argument.startswith("--config="):
            found[position] = "--config=" + _existing(argument.removeprefix("--config="))
    return found


def _existing(path: str) -> str:
    place = Path(find_config(path)) if path.endswith((".yaml", ".yml", ".json")) and "{" not in path else None
    if place is None or place.is_file():
        return str(place or path)
    others = [one.stem for one in place.parent.glob(f"*{place.suffix}")]
    raise ValueError(f"--config {path}: there is no such file{nearest(place.stem, others)}")
