"""Scikit-learn's handwritten digits: real images that come with the package, so they are always available."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits

from datamodules.base import ImageDataModule, Part
from datamodules.images import ImageDataset
from datamodules.splits import id_fraction

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
