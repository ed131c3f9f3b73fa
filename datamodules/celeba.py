"""CelebA faces by gender or hair colour, in torchvision's folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision import datasets

from datamodules.base import Part
from datamodules.files import reading
from datamodules.images import ImageDataset
from datamodules.pictures import PictureDataModule, Preparation, read_pictures

_PARTS: dict[Part, int] = {"train": 0, "validation": 1, "test": 2}
_ATTRIBUTES, _PARTITION, _IDENTITIES = "list_attr_celeba.txt", "list_eval_partition.txt", "identity_CelebA.txt"
_PICTURES = "img_align_celeba"
_HAIR = ("Black_Hair", "Blond_Hair", "Brown_Hair")


class CelebA(PictureDataModule):
    """Celebrity faces, aligned and cropped by the authors (Liu et al. 2015): 162 770 private, 19 962 test.

    `task: gender` is CelebA-G, female and male by the attribute Male. `task: hair` is CelebA-H, black, blonde and
    brown; faces with none or several of these attributes are left out. The official partition is used; its validation
    part of 19 867 faces is held out, and private as well.

    Files are expected where torchvision puts them: `root/celeba/img_align_celeba/*.jpg` of 178×218 pixels and, next to
    that folder, `list_attr_celeba.txt`, `list_eval_partition.txt` and, for a model with `unit: person`,
    `identity_CelebA.txt`. The middle of a picture is cropped to a square, which keeps all hair, and downsized. A
    record's id is the number in its file name. The text files cover all parts; only lines of the requested part are
    kept.

    Both tasks use the same faces: the private data have one name and one ledger.
    """

    num_records = 162_770  # CelebA-H has fewer
    official_validation = True
    private_name = "CelebA"
    subfolder = str(datasets.CelebA.base_folder)
    site = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

    def __init__(self, *, task: Literal["gender", "hair"] = "gender", size: int = 64, **settings: Any) -> None:
        """Store the settings; no file is touched.

        Args:
            task: The attribute to classify.
            size: Height and width of the images.
            settings: See `ImageDataModule`.
        """
        if task not in ("gender", "hair"):
            raise ValueError(f"task must be 'gender' or 'hair', got {task!r}")
        self.task = task
        self.class_names = ("female", "male") if task == "gender" else ("black", "blonde", "brown")
        self.num_classes = len(self.class_names)
        self.name = "CelebA-G" if task == "gender" else "CelebA-H"
        self.label_decides = task == "hair"  # faces without one colour are left out
        super().__init__(preparation=Preparation(size=size, channels=3), **settings)

    def read(self, part: Part) -> ImageDataset:
        """Decodes the pictures of one part, in threads, and takes those that the task has a class for."""
        self.require_files(part)
        parts = self._table(_PARTITION)
        with reading(self.folder / _PARTITION, "table of names such as 000001.jpg and parts"):
            names = sorted(name for name, (number,) in parts.items() if number == _PARTS[part])
            ids = torch.tensor([int(name.partition(".")[0]) for name in names], dtype=torch.int64)
        files = [self.folder / _PICTURES / name for name in names]
        there = {file.name for file in (self.folder / _PICTURES).iterdir()}
        if not set(names) <= there:
            raise self.missing_data([f"{_PICTURES}/{name}" for name in names if name not in there])
        labels, identities = self._labels(names), self._identities(names)
        images = read_pictures(files, self.preparation)
        everyone = ImageDataset(images=images, labels=labels.clamp_min(0), ids=ids, identities=identities)
        return everyone.at(torch.nonzero(labels >= 0).flatten()) if bool((labels < 0).any()) else everyone

    def files(self, part: Part) -> dict[str, str | None]:
        """See `ImageDataModule.files`; includes the identities if their file exists."""
        known = (self.folder / _IDENTITIES).is_file()
        there = {_ATTRIBUTES, _PARTITION, *([_IDENTITIES] if known else [])}
        return {name: published for _, published, name in datasets.CelebA.file_list if name in there}

    def missing(self, part: Part) -> list[str]:
        """See `ImageDataModule.missing`; the pictures count as well."""
        return super().missing(part) + ([] if (self.folder / _PICTURES).is_dir() else [f"{_PICTURES}/"])

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads all parts by torchvision from Google Drive, which may refuse; checksums are verified."""
        datasets.CelebA(str(self.root), split="test", download=True)

    def _labels(self, names: list[str]) -> Tensor:
        """Labels (N,) int64; -1 for a face without a class in the task."""
        path = self.folder / _ATTRIBUTES
        rows = self._table(_ATTRIBUTES, skip=2)
        with reading(path, "table with the attributes in its second line, and a line for each face"):
            header = path.read_text(encoding="utf-8").splitlines()[1].split()
            columns = [header.index(name) for name in (("Male",) if self.task == "gender" else _HAIR)]
            has = torch.tensor([[rows[name][column] == 1 for column in columns] for name in names])
        if self.task == "gender":
            return has[:, 0].long()
        return torch.where(has.sum(dim=1) == 1, has.long().argmax(dim=1), -1)

    def _identities(self, names: list[str]) -> Tensor | None:
        path = self.folder / _IDENTITIES
        if not path.is_file():
            return None
        rows = self._table(_IDENTITIES)
        with reading(path, "table with a line for each face"):
            return torch.tensor([rows[name][0] for name in names], dtype=torch.int64)

    def _table(self, file: str, *, skip: int = 0) -> dict[str, list[int]]:
        """Reads a table as a dictionary from file names to the integers that follow them."""
        path = self.folder / file
        with reading(path, "table of names and whole numbers"):
            lines = filter(str.strip, path.read_text(encoding="utf-8").splitlines()[skip:])
            return {name: [int(word) for word in words] for name, *words in map(str.split, lines)}
