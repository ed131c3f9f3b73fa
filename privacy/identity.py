"""Identifies a teacher's training run."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from privacy.events import Release, release_from_dict

Head: TypeAlias = tuple[str, int, str]
"""Identity of a ledger, the number of its lines that were read, and the hash of the last of them."""


class CheckpointError(ValueError):
    """A checkpoint from which a fit must not be resumed."""


def new_training_id() -> str:
    """A random identity for a teacher's training run.

    Random and not a hash of weights: students publish it, and a hash would be an exact answer about the private data.
    """
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Training:
    """One training of one teacher, or of one ensemble.

    Two files belong to one training only if the same fit, or one that resumed it, wrote both.

    Attributes:
        id: Random, see `new_training_id`.
        kind: What was trained, for example `DPSGDTeacher`.
        releases: What the whole planned training releases about its private records, if it is by DP-SGD: everything
            computed only from the teacher costs no more. None if nothing bounds it.
        ledger: The ledger that the training wrote to or named.
        head: Identity of that ledger, its number of lines when the file was written, and the hash of the last of them;
            None if none was read.
        state: Token of the saved state. The ledger knows the last one, and so tells a second branch of a training from
            its continuation.
        ledger_was_replaced: Whether the training continued with another ledger than it began with.
        partition: Which records were private, if the data said so; plain values, see `ImageDataModule.partition`.
    """

    id: str
    kind: str = "teacher"
    releases: Mapping[Release, int] | None = None
    ledger: Path | None = None
    head: Head | None = None
    state: str | None = None
    ledger_was_replaced: bool = False
    partition: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", self.id):
            raise ValueError(f"id of a training must be 8 to 64 hexadecimal digits, got {self.id!r}")
        if self.releases is not None:
            releases = {release: int(count) for release, count in self.releases.items() if count}
            object.__setattr__(self, "releases", MappingProxyType(releases))

    @property
    def division(self) -> dict[str, Any]:
        """Settings that decide which records are private, and whose they are, but not which a task chooses."""
        settings = (self.partition or {}).get("settings", {})
        chosen = {"classes", "task"}
        if settings.get("test_fraction") is None and settings.get("person_pattern") is None:
            chosen.add("person_pattern")  # folders divide the pictures, and nothing says whose they are
        return {name: value for name, value in settings.items() if name not in chosen}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; `from_dict` is the inverse."""
        return {
            **vars(self),
            "releases": None if self.releases is None else [[r.to_dict(), n] for r, n in self.releases.items()],
            "ledger": None if self.ledger is None else str(self.ledger),
            "head": None if self.head is None else list(self.head),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Training:
        """Inverse of `to_dict`.

        Raises:
            ValueError: The fields are not those of a training.
        """
        try:
            releases, ledger, head = values["releases"], values["ledger"], values["head"]
            read = {
                "releases": None if releases is None else {release_from_dict(r): int(n) for r, n in releases},
                "ledger": None if ledger is None else Path(ledger),
                "head": None if head is None else (str(head[0]), int(head[1]), str(head[2])),
            }
            return cls(**{**values, **read})
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"these values describe no training: {dict(values)!r} ({error!r})") from error


@dataclass(frozen=True)
class UnnamedTraining:
    """A training whose file gives it no identity: a ledger recognises it by its weights (`privacy.ledger.identify`).

    Attributes:
        digest: Hash of the weights, **private**.
        kind: What it is, for a reader.
        folder: Folder of its file, where it may have been charged under another name.
    """

    digest: bytes
    kind: str = "teacher"
    folder: Path | None = None
