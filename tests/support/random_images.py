"""Data sets of noise in any shape, for teachers whose accuracy does not matter."""

from __future__ import annotations

from typing import ClassVar

import torch

from datamodules.base import ImageDataModule, Part
from datamodules.images import ImageDataset


class _RandomImages(ImageDataModule):
    def read(self, part: Part) -> ImageDataset:
        draw = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (8, *self.image_shape), generator=draw, dtype=torch.uint8)
        return ImageDataset(images=images, labels=torch.arange(8) % self.num_classes, ids=torch.arange(8))


class GreyPairs(_RandomImages):
    """Grey images of 64x64 pixels in 2 classes."""

    num_classes = 2
    image_shape: ClassVar[tuple[int, int, int]] = (1, 64, 64)
    num_records = 8
    class_names = ("no", "yes")


class ColourHundred(_RandomImages):
    """Images of 32x32 pixels in colour, in 100 classes."""

    num_classes = 100
    image_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    num_records = 8
    class_names = tuple(map(str, range(100)))


class ColourThousand(_RandomImages):
    """Images of 64x64 pixels in colour, in ImageNet's number of classes."""

    num_classes = 1000
    image_shape: ClassVar[tuple[int, int, int]] = (3, 64, 64)
    num_records = 8
    class_names = tuple(map(str, range(1000)))
