"""Street View House Numbers: cropped digits, in the MATLAB files of their site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.io import loadmat
from torchvision import datasets
from torchvision.datasets.utils import download_url

from datamodules.base import ImageDataModule, Part
from datamodules.files import reading
from datamodules.images import ImageDataset


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
            if len(digits) and not (digits.min() >= 1 and digits.max() <= 10):
                raise ValueError("labels lie outside 1 to 10")
        return self.checked(path, pixels, digits.astype(np.int64) % 10)

    def files(self, part: Part) -> dict[str, str | None]:
        _, name, published = datasets.SVHN.split_list[part]
        return {name: published}

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads the file of one part, its checksum verified."""
        url, name, published = datasets.SVHN.split_list[part]
        download_url(url, str(self.folder), name, published)
