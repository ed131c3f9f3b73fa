"""Each process's share of an evaluation: every record is evaluated by exactly one process."""

from __future__ import annotations

from typing import Any

from lightning import Trainer
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader, DistributedSampler

__all__ = ["own_share", "whole"]


def own_share(loader: DataLoader[Any], trainer: Trainer | None) -> DataLoader[Any]:
    """The part of a loader, which is in order, that this process evaluates; all of it in a single-process run.

    Lightning's own would fill up the last batches with records that were seen already: accuracies of one process and
    of several would differ.
    """
    if trainer is None or trainer.world_size == 1 or isinstance(loader.sampler, DistributedSampler):
        return loader
    sampler = UnrepeatedDistributedSampler(
        loader.dataset, num_replicas=trainer.world_size, rank=trainer.global_rank, shuffle=False
    )
    return _with(loader, sampler)


def whole(loader: DataLoader[Any]) -> DataLoader[Any]:
    """All of what processes share, for a measurement on one of them."""
    return _with(loader, None) if isinstance(loader.sampler, DistributedSampler) else loader


def _with(loader: DataLoader[Any], sampler: Any) -> DataLoader[Any]:
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        persistent_workers=loader.persistent_workers,
        pin_memory=loader.pin_memory,
        collate_fn=loader.collate_fn,
    )
