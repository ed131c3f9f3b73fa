"""The batches that the teachers of an ensemble are trained by: each follows from its own shard, number and seed."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules import ShardedRecords
from lightning_modules.runtime.randomness import stream
from lightning_modules.teachers.augmentation import shifted

__all__ = ["ShardBatches", "shuffled_passes"]

_BLOCK = 100
"""Steps that are drawn at a time."""


def shuffled_passes(size: int, *, first: int, count: int, seed: int, teacher: int) -> Tensor:
    """Part of a teacher's endless sequence of records: one shuffled pass over its shard after another.

    It depends only on (seed, teacher) and the shard's own size, and any part can be had without those before it.

    Args:
        size: Records in the shard.
        first: Place in the sequence at which the part begins.
        count: Length of the part.
        seed: The run's seed.
        teacher: Number of the teacher.

    Returns:
        (count,) int64 in [0, size).
    """
    passes = range(first // size, (first + count - 1) // size + 1)
    drawn = [torch.randperm(size, generator=stream(seed, number, teacher, "shard order")) for number in passes]
    start = first - passes.start * size
    return torch.cat(drawn)[start : start + count]


class ShardBatches:
    """Batches of m teachers at each of their steps.

    Args:
        records: Of all shards.
        teachers: Numbers of the teachers.
        batch_size: B.
        seed: The run's seed.
        shift: Pixels by which each image is moved at most.
        device: Where the records are.
    """

    def __init__(
        self,
        records: ShardedRecords,
        *,
        teachers: range,
        batch_size: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        self._records = records
        self._teachers = teachers
        self._batch_size = batch_size
        self._seed = seed
        self._shift = shift
        self._device = device
        self._planned: tuple[int, Tensor, Tensor] | None = None

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (m, B, C, H, W) and labels (m, B) of one step, row j from the shard of teacher j of `teachers`."""
        if self._planned is None or self._planned[0] != step // _BLOCK:
            self._planned = (step // _BLOCK, *self._plan(step // _BLOCK * _BLOCK))
        chosen, moves = (drawn[step % _BLOCK] for drawn in self._planned[1:])
        images, labels = self._records.records.__getitems__(chosen.flatten())
        if self._shift:
            images = shifted(images, moves.flatten(0, 1))
        return images.unflatten(0, chosen.shape), labels.unflatten(0, chosen.shape)

    def _plan(self, start: int) -> tuple[Tensor, Tensor]:
        """Positions (steps, m, B) of the records of a block, and (steps, m, B, 2) how far their images are moved."""
        size, rows, moves = self._batch_size, [], []
        for teacher in self._teachers:
            positions = self._records.positions(teacher)
            within = shuffled_passes(
                len(positions), first=start * size, count=_BLOCK * size, seed=self._seed, teacher=teacher
            )
            rows.append((positions.start + within).view(_BLOCK, size))
            draw = stream(self._seed, start, teacher, "shift")
            moves.append(torch.randint(-self._shift, self._shift + 1, (_BLOCK, size, 2), generator=draw))
        return torch.stack(rows, dim=1).to(self._device), torch.stack(moves, dim=1).to(self._device)
