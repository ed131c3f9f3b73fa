"""One fit as configuration files and overrides, with its digest and its command line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.cli.configs import find_config

_PLACE = re.compile(r"\{(\w+)\}")
_MOST_BYTES = 1 << 20
"""Largest size of a settings file; larger files hold weights or data."""


class RunnerError(ValueError):
    """A file, a name or an option of a pipeline or table is invalid."""


def hashed(content: Any) -> str:
    """SHA-256 of plain values as 64 hexadecimal digits, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def read_record(name: str, folder: Path) -> dict[str, Any]:
    """Read the record `folder/name.json` that a document names.

    Raises:
        RunnerError: It is missing.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        raise RunnerError(f"a document names the record {file}, which does not exist")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class Fit:
    """One fit of a pipeline or a table.

    Attributes:
        name: Its name.
        config: Configuration files; later ones override earlier ones.
        set: Dotted parameters that override the files. `{name}` stands for the folder of another fit, the parent.
            They are applied in the order of their names, so that a part comes after the whole.
    """

    name: str
    config: Sequence[str] = ()
    set: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parents(self) -> list[str]:
        """Names of the fits that this one's settings refer to."""
        return sorted({match for value in self.set.values() for match in _PLACE.findall(json.dumps(value))})

    def digest(self, parents: Mapping[str, str]) -> str:
        """Hash all settings that determine the fit's outcome, but not the code, whose commit is in the record.

        The hash is of parsed values: a changed comment, white space or order of keys does not make a fit run, and be
        charged, again. Different configurations always have different digests; equal ones that are written differently
        may differ as well.

        Raises:
            OSError: A configuration file cannot be read.
        """
        files = [_parsed(Path(find_config(path)), ()) for path in self.config]
        return hashed([["fit"], files, _content(self.set), dict(parents)])

    def command(self, folder: Path, places: Mapping[str, str], *, resume: Path | None = None) -> list[str]:
        """Command-line arguments that make the fit."""
        line = ["fit"]
        for config in self.config:
            line += ["--config", config]
        line += [f"--trainer.default_root_dir={folder}", "--trainer.enable_model_summary=false"]
        for name, value in sorted(self.set.items()):
            filled = _fill(value, places)
            if filled is None and name.startswith(
                "model."
            ):  # jsonargparse 4.53 reads it as the text "None" in an option
                for part in reversed(name.split(".")):
                    filled = {part: filled}
                name = "config"
            line.append(f"--{name}={filled if isinstance(filled, str) else json.dumps(filled)}")
        wandb = any(part.startswith("--trainer.logger=") and part.endswith("WandbLogger") for part in line)
        if wandb and not any(part.startswith("--trainer.logger.save_dir=") for part in line):
            line.append(f"--trainer.logger.save_dir={folder}")
        if resume is not None:
            line.append(f"--ckpt_path={resume}")
        return line


def _fill(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places[match.group(1)], value)
    if isinstance(value, list):
        return [_fill(item, places) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, places) for key, item in value.items()}
    return value


def _content(value: Any, folder: Path = Path(), above: tuple[Path, ...] = ()) -> Any:
    """Replace names of settings files by their parsed contents, and add a hash to names of Python files."""
    if isinstance(value, Mapping):
        return {str(key): _content(item, folder, above) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_content(item, folder, above) for item in value]
    if isinstance(value, str) and value:
        for file in (folder / value, Path(find_config(value))):
            if file.resolve() not in above and _holds_settings(file):
                return {"option": "", "file": _parsed(file, above)}
        if (code := Path(value.rpartition(":")[0])).suffix == ".py" and code.is_file():
            return {"code": value, "sha256": hashlib.sha256(code.read_bytes()).hexdigest()}
    return value


def _holds_settings(file: Path) -> bool:
    """Whether the parser would read settings from a file: YAML, or a class description with any ending.

    A record written by a fit is neither, and must not change that fit's digest.
    """
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return False
        content = _read(str(file.resolve()), file.stat().st_mtime_ns)
    except (OSError, ValueError, yaml.YAMLError):  # or the text is too long for a file name
        return False
    return file.suffix in (".yaml", ".yml") or (isinstance(content, Mapping) and "class_path" in content)


def _parsed(file: Path, above: tuple[Path, ...]) -> Any:
    file = file.resolve()
    return _content(_read(str(file), file.stat().st_mtime_ns), file.parent, (*above, file))


@cache
def _read(path: str, changed: int) -> Any:
    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
