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


class RunnerError(ValueError):
    """A file, a name or an option of a pipeline or table is invalid."""


def hashed(content: Any) -> str:
    """SHA-256 of plain values as 64 hexadecimal digits, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def read_record(name: str, folder: Path) -> dict[str, Any]:
    """Reads the record `folder/name.json` that a document names."""
    return dict(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


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
        """Hashes all settings that determine the fit's outcome, but not the code, whose commit is in the record.

        The hash is of parsed values: a changed comment, white space or order of keys does not make a fit run, and be
        charged, again. Different configurations always have different digests; equal ones that are written differently
        may differ as well.

        Raises:
            OSError: A configuration file cannot be read.
        """
        found = [Path(find_config(path)).resolve() for path in self.config]
        files = [_content(_read(file, file.stat().st_mtime_ns), file.parent) for file in found]
        return hashed([["fit"], files, _content(self.set), dict(parents)])

    def command(self, folder: Path, places: Mapping[str, str], *, resume: Path | None = None) -> list[str]:
        """Command-line arguments that make the fit."""
        line = ["fit"]
        for config in self.config:
            line += ["--config", config]
        line += [f"--trainer.default_root_dir={folder}", "--trainer.enable_model_summary=false"]
        for name, value in sorted(self.set.items()):
            filled = _fill(value, places)
            if filled is None and name.startswith("model."):
                # In an option jsonargparse 4.53 reads it as the text "None".
                for part in reversed(name.split(".")):
                    filled = {part: filled}
                name = "config"
            line.append(f"--{name}={filled if isinstance(filled, str) else json.dumps(filled)}")
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


def _content(value: Any, folder: Path = Path()) -> Any:
    """Adds the content to names of settings files, and a hash to names of Python files; fits write neither."""
    if isinstance(value, Mapping):
        return {str(key): _content(item, folder) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_content(item, folder) for item in value]
    if isinstance(value, str) and value.partition(":")[0].endswith((".yaml", ".yml", ".py")):
        name = value.partition(":")[0]
        for file in (folder / name, Path(find_config(name))):
            if file.is_file():
                content = file.read_bytes()
                parsed = hashlib.sha256(content).hexdigest() if file.suffix == ".py" else yaml.safe_load(content)
                return {"name": value, "content": parsed}
    return value


@cache
def _read(file: Path, changed: int) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
