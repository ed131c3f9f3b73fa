"""Images of a data set that is declared to be public, in place of synthetic ones: what PATE learns from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from datamodules import ImageDataModule
from datamodules.partition import Partition, same_data
from lightning_modules.images.base import ImageSource
from lightning_modules.runtime.randomness import Draws
from lightning_modules.setting_checks import check_choice

__all__ = ["PoolSource"]


class PoolSource(ImageSource):
    """Batches drawn with replacement from a pool, whose labels are never read.

    Args:
        pool: The data set.
        part: Part of it, `test` or `train`.
        image_shape: (C, H, W) that is expected.
        batch_size: B.

    Raises:
        ValueError: Another part, or images of another shape.

    Attributes:
        pixels: All images, shape (N, C, H, W); empty until `open`.
        is_private: Whether these are the private records themselves: then none is stored or drawn.
    """

    kind = "pool"

    def __init__(
        self,
        pool: ImageDataModule,
        *,
        part: Literal["test", "train"],
        image_shape: tuple[int, int, int],
        batch_size: int,
    ) -> None:
        check_choice("images.pool_part", part, ("test", "train"))
        if tuple(pool.image_shape) != image_shape:
            raise ValueError(f"images.pool must have images of shape {image_shape}, {pool.name} has {pool.image_shape}")
        self.pool = pool
        self.part = part
        self.rows = batch_size
        self.pixels = torch.empty(0, *image_shape)
        self.is_private = False

    def open(self, *, private: set[str | None], partitions: Sequence[Partition | None] = (), queries: int = 1) -> None:
        """Reads the images.

        Args:
            private: Names of the private data. A name that was given by hand must not make them public.
            partitions: What files say of the private data, whatever the name.
            queries: How many of them the ensemble is queried about.

        Raises:
            ValueError: There are fewer.
        """
        if self.pool.download:
            self.pool.fetch(self.part)
        self.pool.setup("fit" if self.part == "train" else "test")
        records = self.pool.train_records if self.part == "train" else self.pool.test_records
        self.pixels = records.__getitems__(range(len(records)))[0]
        if len(records) < queries:
            raise ValueError(
                f"query_phase.queries must be at most the {len(records)} images of the pool, got {queries}"
            )
        same = any(one and same_data(one, self.pool.partition) for one in partitions)
        self.is_private = self.part == "train" and (same or self.pool.private_data in private)

    def images(self, step: int, latents: torch.Tensor | None, draws: Draws) -> torch.Tensor:
        positions = torch.randint(len(self.pixels), (self.rows,), generator=draws.stream(step, "pool"))
        return self.pixels[positions].to(draws.device)

    def grid(self, count: int, *, seed: int, device: torch.device) -> torch.Tensor:
        return self.pixels[: 0 if self.is_private else count]

    def assumption(self) -> str:
        """Assumption of a guarantee where the pool is public."""
        return (
            f"the pool of unlabelled images, the {self.part} part of {self.pool.name}, is public and was there without "
            "the private data"
        )
