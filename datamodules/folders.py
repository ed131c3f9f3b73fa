"""Pictures in a folder for each class: what is there, by names only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from datamodules.images import ImageDataset
from datamodules.pictures import SUFFIXES, Preparation, read_pictures
from datamodules.splits import ids_of_names

__all__ = ["Listing", "pictures_below", "subfolders"]


def subfolders(folder: Path) -> tuple[str, ...]:
    """Returns the names of the folders in a folder, in order; hidden ones are left out."""
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")))


def pictures_below(folder: Path) -> list[Path]:
    """Returns the pictures in and below a folder, in order of their relative paths; hidden ones are left out."""
    found = []
    for where, inner, files in os.walk(folder, followlinks=True):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [
            Path(where, name) for name in files if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


@dataclass(frozen=True)
class Listing:
    """Files, each with the label and the name that its id is made of.

    Attributes:
        files: N paths.
        labels: N labels.
        names: N names, stable: the same wherever the data set is, and whatever else is in it.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, folders: Sequence[tuple[int, Path]], *, relative_to: Path) -> Listing:
        """Lists the pictures of some folders.

        Args:
            folders: The label of each, and where it is.
            relative_to: Names are the paths from here.
        """
        found = [(file, label) for label, folder in folders for file in pictures_below(folder)]
        return cls(
            files=tuple(file for file, _ in found),
            labels=tuple(label for _, label in found),
            names=tuple(file.relative_to(relative_to).as_posix() for file, _ in found),
        )

    def __len__(self) -> int:
        """Returns the number of files."""
        return len(self.files)

    @property
    def ids(self) -> torch.Tensor:
        """(N,) int64, stable."""
        return ids_of_names(self.names)

    def at(self, rows: Sequence[int]) -> Listing:
        """Returns those at some positions."""
        return Listing(
            files=tuple(self.files[row] for row in rows),
            labels=tuple(self.labels[row] for row in rows),
            names=tuple(self.names[row] for row in rows),
        )

    def read(self, prepare: Preparation, *, cache: Path | None, name: str) -> ImageDataset:
        """Decodes the pictures; see `read_pictures`."""
        return ImageDataset(
            images=read_pictures(self.files, prepare, cache=cache, name=name),
            labels=torch.tensor(self.labels, dtype=torch.int64),
            ids=self.ids,
            names=self.names,
        )
