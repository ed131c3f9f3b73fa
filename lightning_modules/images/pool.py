"""Images declared public, used instead of synthetic ones, as in PATE."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn import functional

from datamodules import ImageDataModule
from datamodules.pictures import PictureDataModule, Preparation, pictures_below, read_pictures, require_outside
from datamodules.records import Partition, require_partition, same_data
from lightning_modules.images.base import ImageSource
from lightning_modules.precision import full_float32
from lightning_modules.runtime.randomness import Draws
from lightning_modules.setting_checks import check_choice

_JUDGED = "accuracy on it is of images that the student was trained on"


class PoolSource(ImageSource):
    """Batches drawn with replacement from a public pool, whose labels are never read; for the settings see `Images`.

    Raises:
        ValueError: The part is neither `test` nor `train`, or the pool's images have another shape.

    Attributes:
        pixels: All images, shape (N, C, H, W); empty until `open`.
        is_private: Whether the pool is the private data themselves; then `grid` shows none of it.
        is_judged: Whether the student is evaluated on the pool's images.
    """

    kind = "pool"

    def __init__(
        self,
        pool: ImageDataModule | str,
        *,
        part: Literal["test", "train"],
        image_shape: tuple[int, int, int],
        batch_size: int,
        varied: bool = False,
    ) -> None:
        check_choice("images.pool_part", part, ("test", "train"))
        if isinstance(pool, ImageDataModule) and tuple(pool.image_shape) != image_shape:
            raise ValueError(f"images.pool must have images of shape {image_shape}, {pool.name} has {pool.image_shape}")
        self.pool = pool
        self.part = part
        self.varied = varied
        self.rows = batch_size
        self.pixels = torch.empty(0, *image_shape)
        self.is_private = self.is_judged = False

    def open(self, *, private: set[str], partitions: Sequence[Partition | None] = (), data: Any = None) -> None:
        """Read the images.

        Args:
            private: Names of the private data. Renaming them must not make them public.
            partitions: Partitions of the private data according to files and the data module, whatever the name.
            data: The data module; pictures of a folder are prepared like its own.

        Raises:
            PartitionError: The pool is partitioned otherwise than the private data, or inside their folder.
            ValueError: The folder has no pictures, or is used for images that are not square.
        """
        pool, data = self.pool, innermost(data)
        if isinstance(pool, str):
            self.pixels = self._decoded(Path(pool).expanduser(), partitions, data)
            return
        require_partition(partitions, pool, whose="the teacher's file, or data.dataset,")
        same = any(one and same_data(one, pool.partition) for one in partitions)
        if pool.download:
            pool.fetch(self.part)
        if not same and isinstance(pictures := innermost(pool), PictureDataModule):
            require_outside(partitions, pictures_below(pictures.folder), private=_folder_of(data))
        pool.setup("fit" if self.part == "train" else "test")
        records = pool.train_records if self.part == "train" else pool.test_records
        self.pixels = records.__getitems__(range(len(records)))[0]
        self.is_private = self.is_of(private, partitions)
        judged = isinstance(data, ImageDataModule) and same_data(data.partition, pool.partition)
        self.is_judged = self.part == "test" and judged
        if self.is_judged:
            rank_zero_warn(f"images.pool is the test split: {_JUDGED}")

    def is_of(self, private: set[str], partitions: Sequence[Partition | None]) -> bool:
        """Whether the pool is private data with one of these names or partitions."""
        pool = self.pool
        if self.part != "train" or isinstance(pool, str):
            return False
        return pool.private_data in private or any(one and same_data(one, pool.partition) for one in partitions)

    def _decoded(self, folder: Path, partitions: Sequence[Partition | None], data: Any) -> Tensor:
        files = pictures_below(folder)
        _, channels, height, width = self.pixels.shape
        if not files or height != width:
            raise ValueError(f"images.pool must be a data set or pictures for square images: {folder} has {len(files)}")
        require_outside(partitions, files, private=_folder_of(data))
        prepare = getattr(data, "preparation", None) or Preparation(size=height, channels=channels)
        return read_pictures(files, prepare).float() / 127.5 - 1

    def images(self, step: int, latents: Tensor | None, draws: Draws) -> Tensor:
        draw = draws.stream(step, "pool")
        images = self.pixels[torch.randint(len(self.pixels), (self.rows,), generator=draw)].to(draws.device)
        return varied(images, draw=draw) if self.varied else images

    def grid(self, count: int, *, seed: int, device: torch.device) -> Tensor:
        return self.pixels[: 0 if self.is_private else count]

    def assumptions(self) -> list[str]:
        pool = self.pool
        what = f"a folder {Path(pool).name}" if isinstance(pool, str) else f"the {self.part} part of {pool.name}"
        told = f"the pool of unlabelled images, {what}, is public and was there without the private data"
        return [] if self.is_private else [f"{told} ({_JUDGED})" if self.is_judged else told]


def innermost(data: Any) -> Any:
    """Return the data set that data modules are wrapped around."""
    while hasattr(data, "dataset"):
        data = data.dataset
    return data


def _folder_of(data: Any) -> Path | None:
    return data.folder if isinstance(data, PictureDataModule) else None


def varied(images: Tensor, *, draw: torch.Generator) -> Tensor:
    """Randomly rotate, scale, shift and mirror images (N, C, H, W) in [-1, 1] and change brightness and contrast.

    Then 7 in 10 are mixed with the next image, of which they get up to half (mixup, Zhang et al. 2018).
    """
    # torchvision's transforms draw once per batch and use the global generator.
    numbers = (2 * torch.rand(len(images), 9, generator=draw) - 1).to(images.device)
    with torch.autocast(images.device.type, enabled=False), full_float32():
        turn, size, right, down = (0.15 * numbers[:, :4]).unbind(1)
        mirror = torch.where(numbers[:, 4] < 0, -1.0, 1.0)
        along, across = (1 + size) * turn.cos(), (1 + size) * turn.sin()
        moves = torch.stack([mirror * along, -across, right, mirror * across, along, down], 1).reshape(-1, 2, 3)
        grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
        moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
        contrast, brightness, share, mixed = numbers[:, 5:, None, None, None].unbind(1)
        moved = ((1 + 0.2 * contrast) * moved + 0.2 * brightness).clamp(-1, 1)
        return moved.lerp(moved.roll(1, 0), torch.where(mixed < 0.4, (1 + share) / 4, 0.0))
