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


class ColourHundred(_RandomImages):
    """Images of 32x32 pixels in colour, in 100 classes."""

    num_classes = 100
    image_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    num_records = 8
    class_names = tuple(map(str, range(100)))
