"""Procedural images to learn from: a pool that is drawn once, and gone through again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules.base import require_at_least
from lightning_modules.priors import DeadLeavesPrior, ImagePrior, check_sample
from lightning_modules.runtime.randomness import key, stream

__all__ = ["PoolBatches", "ProceduralImages", "draw_pool"]

#: Images that are drawn at once: of more, the processor's cache holds too few numbers of each.
_PIECE = 250


def draw_pool(
    prior: ImagePrior, count: int, *, image_shape: tuple[int, int, int], seed: int, name: str, workers: int = 1
) -> Tensor:
    """Images of a prior, a byte for each number: the same ones whatever the number of workers.

    Args:
        prior: Draws them.
        count: N.
        image_shape: (C, H, W).
        seed: Of all of them.
        name: Of the pool: pools of other names have other images.
        workers: Threads, of one core each.

    Returns:
        (N, C, H, W) uint8, 0 for -1 and 255 for 1.
    """
    pool = torch.empty(count, *image_shape, dtype=torch.uint8)
    pieces = range(0, count, _PIECE)

    def fill(start: int) -> None:
        rows = min(_PIECE, count - start)
        # Of whole pieces, so that a larger pool begins with the images of a smaller one.
        images = prior.sample(_PIECE, image_shape=image_shape, generator=stream(seed, start, 0, name), device="cpu")
        pool[start : start + rows] = ((images[:rows] + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            drawn = threads.map(fill, pieces)
            for _ in track(drawn, total=len(pieces), description="images", transient=True, disable=len(pieces) < 20):
                pass
    finally:
        torch.set_num_threads(before)
    return pool


class PoolBatches:
    """Batches of a pool in an order of each epoch's own, and from where a checkpoint stopped.

    No `DataLoader`: a resumed run is to see the batches that an uninterrupted one would have seen.

    Args:
        images: (N, C, H, W) uint8.
        batch_size: B; what is left over at the end of an epoch is left out of it.
        seed: Of the orders.
        data: Whose trainer says which epoch begins.
    """

    def __init__(self, images: Tensor, *, batch_size: int, seed: int, data: LightningDataModule) -> None:
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self._data = data

    def __len__(self) -> int:
        """Returns the batches of a whole epoch."""
        return len(self.images) // self.batch_size

    def __iter__(self) -> Iterator[Tensor]:
        """Yields images (B, C, H, W) uint8, in an epoch that is resumed from where it was left."""
        epoch, start = self._reached()
        draw = torch.Generator().manual_seed(key(self.seed, epoch, 0, "order"))
        order = torch.randperm(len(self.images), generator=draw)
        for number in range(start, len(self)):
            yield self.images[order[number * self.batch_size : (number + 1) * self.batch_size]]

    def _reached(self) -> tuple[int, int]:
        """Epoch and batch that come next.

        Asked when the first is wanted: Lightning loses a loader's own state where the number of steps is asked for
        before it is restored.
        """
        trainer = self._data.trainer
        if trainer is None:
            return 0, 0
        loop: Any = trainer.fit_loop
        return trainer.current_epoch, int(loop.epoch_loop.batch_progress.current.ready)

    def state_dict(self) -> dict[str, int]:
        """Returns nothing, which tells Lightning that an epoch can be resumed: the trainer holds what is needed."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Inverse of `state_dict`."""


class ProceduralImages(LightningDataModule):
    """Images that nobody took, of any prior or mixture of priors, and no others: no file is opened.

    Attributes:
        num_classes: 1: there is nothing to tell.
        num_records: 0: none of the images is anybody's.
    """

    num_classes = 1
    num_records = 0
    metrics = ("accuracy",)
    name = "ProceduralImages"

    def __init__(
        self,
        *,
        prior: ImagePrior | None = None,
        image_shape: Sequence[int] = (3, 32, 32),
        num_images: int = 50_000,
        held_out: int = 1024,
        batch_size: int = 256,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        """Remembers the settings; nothing is drawn yet.

        Args:
            prior: What draws the images. Default: `DeadLeavesPrior`.
            image_shape: (C, H, W).
            num_images: N, drawn once for each fit and kept in memory, a byte for each number.
            held_out: Further images, to measure on.
            batch_size: Images per step.
            seed: Of the images and of their order. Equal seeds draw equal images, on any number of cores.
            num_workers: Threads that draw; 0 takes as many as torch does.

        Raises:
            ValueError: A setting is outside its range.
        """
        super().__init__()
        shape = tuple(image_shape)
        check_sample(1, shape)  # type: ignore[arg-type]
        self.image_shape = (shape[0], shape[1], shape[2])
        self.prior = prior or DeadLeavesPrior()
        self.num_images = require_at_least(2, num_images=num_images)
        self.held_out = require_at_least(2, held_out=held_out)
        self.batch_size = require_at_least(2, batch_size=batch_size)
        self.seed = require_at_least(0, seed=seed)
        self.num_workers = require_at_least(0, num_workers=num_workers)
        if batch_size > num_images:
            raise ValueError(f"batch_size must not exceed num_images, {num_images}, got {batch_size}")
        self._pools: dict[str, Tensor] = {}

    def _pool(self, name: str, count: int) -> Tensor:
        """Drawn when it is first asked for, and not in `setup`: by then a model has refused what it cannot take."""
        if name not in self._pools:
            workers = self.num_workers or torch.get_num_threads()
            self._pools[name] = draw_pool(
                self.prior, count, image_shape=self.image_shape, seed=self.seed, name=name, workers=workers
            )
        return self._pools[name]

    def train_dataloader(self) -> PoolBatches:
        """Returns batches of the pool, (B, C, H, W) uint8."""
        if "pool" not in self._pools:
            rank_zero_info(f"{self.num_images:,} images are drawn once.")
        return PoolBatches(self._pool("pool", self.num_images), batch_size=self.batch_size, seed=self.seed, data=self)

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Returns the held-out images, (B, C, H, W) uint8, in order: a pair is told from those of its batch."""
        images = self._pool("held out", self.held_out)
        alone = len(images) % self.batch_size == 1  # has nothing to be told from
        return DataLoader(images, batch_size=self.batch_size, collate_fn=torch.stack, drop_last=alone)  # type: ignore[arg-type]

    def test_dataloader(self) -> DataLoader[Tensor]:
        """Returns the same: nothing is chosen by them."""
        return self.val_dataloader()
