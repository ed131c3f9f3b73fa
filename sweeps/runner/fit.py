"""One fit as configuration files and what overrides them, and the command line that makes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.runner.digest import digest

__all__ = ["Fit"]

_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Fit:
    """One fit of a pipeline, a table or a sweep.

    Attributes:
        name: Its name.
        config: Configuration files, later ones override earlier ones.
        set: Dotted parameters that override the files. `{name}` stands for the folder of another fit, its parent.
        arguments: What the command line begins with: the command, and whatever a sweep's file adds to it.
    """

    name: str
    config: Sequence[str] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ("fit",)

    @property
    def parents(self) -> list[str]:
        """Names of the fits that this one's settings refer to."""
        return sorted({match for value in self.set.values() for match in _PLACE.findall(json.dumps(value))})

    def digest(self, parents: Mapping[str, str]) -> str:
        """Its digest.

        Args:
            parents: Digest of each parent, by name.
        """
        return digest(arguments=self.arguments, config=self.config, settings=self.set, parents=parents)

    def command(self, folder: Path, places: Mapping[str, str], *, resume: Path | None = None) -> list[str]:
        """The arguments of the command line that makes it.

        Args:
            folder: Where its files go.
            places: Folder of each fit that its settings refer to.
            resume: Checkpoint to go on from.
        """
        line = list(self.arguments)
        for config in self.config:
            line += ["--config", config]
        line.append(f"--trainer.default_root_dir={folder}")
        for name, value in self.set.items():
            filled = _fill(value, places)
            line.append(f"--{name}={filled if isinstance(filled, str) else json.dumps(filled)}")
        if _logs_to_wandb(line):
            line.append(f"--trainer.logger.save_dir={folder}")
        if resume is not None:
            line.append(f"--ckpt_path={resume}")
        return line


def _logs_to_wandb(line: Sequence[str]) -> bool:
    logs = any(part.startswith("--trainer.logger=") and part.endswith("WandbLogger") for part in line)
    return logs and not any(part.startswith("--trainer.logger.save_dir=") for part in line)


def _fill(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places[match.group(1)], value)
    if isinstance(value, list):
        return [_fill(item, places) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, places) for key, item in value.items()}
    return value
