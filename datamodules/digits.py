"""Small images: scikit-learn's digits, which are always available, MNIST, FashionMNIST and SVHN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.io import loadmat
from sklearn.datasets import load_digits
from torchvision import datasets
from torchvision.datasets.mnist import read_image_file, read_label_file
from torchvision.datasets.utils import download_url

from datamodules.base import ImageDataModule, Part
from datamodules.files import reading, records_of_file
from datamodules.records import ImageDataset, id_fraction

TEST_FRACTION = 0.21

_bundled = cache(load_digits)  # parsing its text takes as long as several training steps


class Digits(ImageDataModule):
    """1797 handwritten digits of 8×8 pixels and 17 grey levels (UCI "Optical Recognition of Handwritten Digits").

    The bundled array has no official split. A fixed public one is made by hash of the row number: a test part of 362
    records and a private part of 1435, of which `val_fraction` are held out for validation (160 by default, leaving
    1275 to train on). Both parts are in one array; a stage keeps only what it needs.

    `root` and `download` have no effect.
    """

    num_classes = 10
    image_shape = (1, 8, 8)
    num_records = 1435
    class_names = tuple("0123456789")

    def read(self, part: Part) -> ImageDataset:
        """Selects one part of the bundled array by the hash of the row number."""
        bundled = _bundled()
        images = torch.from_numpy(bundled.images).to(torch.uint8).unsqueeze(1)
        labels = torch.from_numpy(bundled.target).to(torch.int64)
        ids = torch.arange(len(labels))
        is_test = id_fraction(ids, purpose="digits-test") < TEST_FRACTION
        everything = ImageDataset(images=images, labels=labels, ids=ids, peak=16)
        return everything.select(is_test if part == "test" else ~is_test)


_PREFIX: dict[Part, str] = {"train": "train", "test": "t10k"}


class MNIST(ImageDataModule):
    """70 000 handwritten digits of 28×28 grey pixels (LeCun et al. 1998): 60 000 private, 10 000 test.

    Files are expected where torchvision puts them, `root/MNIST/raw/*-ubyte`, uncompressed. Unlike in
    `torchvision.datasets.MNIST`, the two parts are independent: evaluation only needs the two `t10k` files, and the
    training files may be on another machine. A record's id is its index in the official file.
    """

    num_classes = 10
    image_shape = (1, 28, 28)
    num_records = 60_000
    class_names = tuple("0123456789")
    subfolder = "MNIST/raw"
    site = str(datasets.MNIST.mirrors[0])
    source: ClassVar[Any] = datasets.MNIST  # the torchvision class that downloads

    def read(self, part: Part) -> ImageDataset:
        image_file, label_file = self.require_files(part)
        with reading(image_file, "IDX file of bytes"):
            images = read_image_file(str(image_file))
        with reading(label_file, "IDX file of bytes"):
            labels = read_label_file(str(label_file))
        return records_of_file(self, image_file, images.unsqueeze(1), labels)

    def files(self, part: Part) -> dict[str, str | None]:
        """See `ImageDataModule.files`; published checksums exist only for the archives."""
        return {f"{_PREFIX[part]}-images-idx3-ubyte": None, f"{_PREFIX[part]}-labels-idx1-ubyte": None}

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads both parts by torchvision, checksums verified."""
        self.source(str(self.root), train=part == "train", download=True)


class FashionMNIST(MNIST):
    """70 000 pictures of clothes, 28×28 grey pixels (Xiao et al. 2017): 60 000 private, 10 000 test.

    Files as for `MNIST`, in `root/FashionMNIST/raw`.
    """

    class_names = tuple(datasets.FashionMNIST.classes)
    subfolder = "FashionMNIST/raw"
    site = str(datasets.FashionMNIST.mirrors[0])
    source = datasets.FashionMNIST


class SVHN(ImageDataModule):
    """99 289 digits of house numbers, 32×32 colour pixels (Netzer et al. 2011): 73 257 private, 26 032 test.

    Files are expected as `root/SVHN/train_32x32.mat` and `root/SVHN/test_32x32.mat`; `extra_32x32.mat` is not used. The
    files label the digit 0 as 10; here a digit's label is the digit. A record's id is its index in the file.
    """

    num_classes = 10
    image_shape = (3, 32, 32)
    num_records = 73_257
    class_names = tuple("0123456789")
    subfolder = "SVHN"
    site = datasets.SVHN.split_list["train"][0]

    def read(self, part: Part) -> ImageDataset:
        (path,) = self.require_files(part)
        with reading(path, "MATLAB file with X and y"):
            content = loadmat(path, variable_names=["X", "y"])
            pixels, digits = content["X"].transpose(3, 2, 0, 1), content["y"].reshape(-1)
        return records_of_file(self, path, pixels, digits.astype(np.int64) % 10)

    def files(self, part: Part) -> dict[str, str | None]:
        _, name, published = datasets.SVHN.split_list[part]
        return {name: published}

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads the file of one part, its checksum verified."""
        url, name, published = datasets.SVHN.split_list[part]
        download_url(url, str(self.folder), name, published)
