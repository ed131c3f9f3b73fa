"""Labelled images held in memory, fetched a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

Batch = TypeVar("Batch")


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels in memory, each record with a stable id.

    Pixels are stored as in the files (one byte each) and become float32 in [-1, 1] when fetched. `DataLoader` asks
    `__getitems__` for a whole batch, which is one index operation instead of a Python loop over records; use
    `collate_fn=keep_batch` with it.

    Attributes:
        ids: (N,) int64, distinct, the stable id of every record, which decides splits and teachers' shards.
        images: (N, C, H, W) uint8, values 0 to `peak`.
        labels: (N,) int64.
        peak: Pixel value that maps to 1 (0 maps to -1), 1 to 255; given by the file format, never by the images.
        identities: (N,) int64, the person of each record, if the data set says; records of one person share it.
        names: N file names for tables of predictions, if each record has its own file.
    """

    def __init__(
        self,
        *,
        images: Tensor,
        labels: Tensor,
        ids: Tensor,
        peak: int = 255,
        identities: Tensor | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Checks and stores the records.

        Raises:
            ValueError: A shape, type or range is not as described under Attributes, or an id occurs twice.
        """
        if images.dim() != 4 or images.dtype != torch.uint8:
            raise ValueError(f"images must be (N, C, H, W) uint8, got {tuple(images.shape)} of {images.dtype}")
        for name, values in (("labels", labels), ("ids", ids), ("identities", identities)):
            if values is None:
                continue
            if values.shape != (len(images),) or values.dtype != torch.int64:
                raise ValueError(
                    f"{name} must be ({len(images)},) int64 for {len(images)} images, "
                    f"got {tuple(values.shape)} of {values.dtype}"
                )
        if len(torch.unique(ids)) != len(ids):
            raise ValueError("ids must be distinct: an id names one record")
        if not 1 <= peak <= 255:
            raise ValueError(f"peak must be 1 to 255, got {peak}")
        # With a peak of 255 there is nothing to check, and memory-mapped images are not read.
        if peak < 255 and images.numel() and int(images.max()) > peak:
            raise ValueError(f"images must not exceed peak={peak}, got a pixel of {int(images.max())}")
        self.images = images
        self.labels = labels
        self.ids = ids
        self.peak = peak
        self.identities = identities
        self.names = names

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns image (C, H, W) float32 in [-1, 1] and label () int64 of one position."""
        return self._normalise(self.images[index]), self.labels[index]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Returns images (B, C, H, W) float32 in [-1, 1] and labels (B,) int64 of many positions."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self._normalise(self.images[rows]), self.labels[rows]

    def select(self, mask: Tensor) -> ImageDataset:
        """Returns a copy of the records where `mask` (N,) bool holds, ids kept.

        Raises:
            ValueError: `mask` is not (N,) bool.
        """
        if mask.shape != (len(self),) or mask.dtype != torch.bool:
            raise ValueError(f"mask must be ({len(self)},) bool, got {tuple(mask.shape)} of {mask.dtype}")
        return self.at(torch.nonzero(mask).flatten())

    def at(self, rows: Tensor) -> ImageDataset:
        """Returns a copy of the records at positions `rows` (M,) int64, in their order, ids kept."""
        return ImageDataset(
            images=self.images[rows],
            labels=self.labels[rows],
            ids=self.ids[rows],
            peak=self.peak,
            identities=None if self.identities is None else self.identities[rows],
            names=None if self.names is None else [self.names[row] for row in rows.tolist()],
        )

    def relabelled(self, labels: Tensor) -> ImageDataset:
        """Returns the same records, images shared, with other labels (N,) int64."""
        records = copy(self)
        records.labels = labels
        return records

    def to(self, device: torch.device) -> ImageDataset:
        """Returns a copy on a device, where batches are then assembled."""
        records = copy(self)
        records.images, records.labels, records.ids = (x.to(device) for x in (self.images, self.labels, self.ids))
        records.identities = None if self.identities is None else self.identities.to(device)
        return records

    def _normalise(self, pixels: Tensor) -> Tensor:
        # Dividing by half the peak is exact at both ends: 0 becomes -1 and the peak becomes 1, to the last bit.
        return pixels.to(torch.float32).div_(self.peak / 2).sub_(1)


def keep_batch(batch: Batch) -> Batch:
    """Collates what `ImageDataset.__getitems__` returns, which is already a batch."""
    return batch
