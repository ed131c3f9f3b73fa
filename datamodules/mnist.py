"""MNIST and FashionMNIST, in torchvision's folders and through torchvision's loaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torchvision import datasets
from torchvision.datasets.mnist import read_image_file, read_label_file

from datamodules.base import ImageDataModule, Part
from datamodules.files import reading
from datamodules.images import ImageDataset

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
        return self.checked(image_file, images.unsqueeze(1), labels)

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
