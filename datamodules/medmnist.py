"""MedMNIST's two-dimensional data sets, described by the package `medmnist` (an extra)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torchvision.datasets.utils import download_url

from datamodules.base import ImageDataModule, Part
from datamodules.files import imported, reading, records_of_file
from datamodules.records import ImageDataset

_KEYS: dict[Part, str] = {"train": "train", "validation": "val", "test": "test"}
_SINGLE_LABEL = ("binary-class", "multi-class", "ordinal-regression")


class MedMNIST(ImageDataModule):
    """Medical images of one size, with official training, validation and test parts (Yang et al. 2023).

    Files are expected as `root/medmnist/<subset>.npz`, or `<subset>_<size>.npz` for sizes above 28. The official
    training part is private, and all of it is trained on; the official validation part is held out, and private as
    well; the official test part is public. Classes, channels, counts and checksums are the package's.

    Subsets with one label per image and two or more classes are supported. RetinaMNIST's ordered grades are treated as
    classes, as in MedMNIST's own baselines. ChestMNIST, which has many labels per image, and 3D subsets are refused.

    A record's id is its index in its part. All sizes show the same records: the private data have one name and one
    ledger.
    """

    subfolder = "medmnist"
    metrics = ("accuracy", "auroc")
    official_validation = True

    def __init__(
        self, *, subset: str = "pneumoniamnist", size: Literal[28, 64, 128, 224] = 28, **settings: Any
    ) -> None:
        """Looks up the subset; no file is touched.

        Args:
            subset: Name of the subset, such as `pneumoniamnist` or `pathmnist`.
            size: Height and width; each size has its own files.
            settings: See `ImageDataModule`.

        Raises:
            ImportError: The package `medmnist` is not installed.
            ValueError: The subset does not exist, or is not supported.
        """
        known = imported("medmnist", needed_by="MedMNIST", extra="medmnist")[0].INFO
        supported = [name for name in known if not name.endswith("3d") and known[name]["task"] in _SINGLE_LABEL]
        if subset not in supported:
            raise ValueError(f"subset must be 2D with one label per image: {', '.join(supported)}; got {subset!r}")
        self._info: dict[str, Any] = known[subset]
        self.subset = subset
        self.size = size
        self._suffix = "" if size == 28 else f"_{size}"
        self.site = str(self._info[f"url{self._suffix}"])
        names = self._info["label"]
        self.class_names = tuple(names[str(label)] for label in range(len(names)))
        self.num_classes = len(names)
        self.image_shape = (int(self._info["n_channels"]), size, size)
        self.num_records = int(self._info["n_samples"]["train"])
        self.name = str(self._info["python_class"])
        super().__init__(**settings)

    @property
    def file(self) -> Path:
        """The file, which holds all parts."""
        return self.folder / f"{self.subset}{self._suffix}.npz"

    def read(self, part: Part) -> ImageDataset:
        """Reads the arrays of one part, and not those of the others.

        The published checksum is of the whole file, so it is only checked when the training part is read. Other parts
        rely on the checksums of their arrays within the file.
        """
        self.require_files(part)
        key = _KEYS[part]
        with reading(self.file, "file of MedMNIST"), np.load(self.file, allow_pickle=False) as arrays:
            images, labels = arrays[f"{key}_images"], arrays[f"{key}_labels"]
            images = images[:, None] if self.image_shape[0] == 1 else images.transpose(0, 3, 1, 2)
        return records_of_file(self, self.file, images, labels)

    def files(self, part: Part) -> dict[str, str | None]:
        return {self.file.name: self._info[f"MD5{self._suffix}"] if part == "train" else None}

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads the file of all parts, its checksum verified."""
        download_url(self.site, str(self.folder), self.file.name, self._info[f"MD5{self._suffix}"])
