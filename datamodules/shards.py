"""Private records in disjoint shards by stable id, one for each teacher of an ensemble."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.base import ImageDataModule
from datamodules.mapped import MappedRecords
from datamodules.records import ImageDataset, id_fraction
from datamodules.wrapped import StepIndices, WrappedDataset
from privacy.checks import check_count


def shard_of(ids: Tensor, *, num_shards: int) -> Tensor:
    """Returns each record's shard in [0, num_shards), (N,) int64 like `ids`, by its stable id and this public number.

    Raises:
        ValueError: `num_shards` is below 1, or `id_fraction` refuses the ids.
    """
    check_count("num_shards", num_shards, minimum=1)
    # A fraction just below 1 times n may round up to n.
    return (id_fraction(ids, purpose="shard") * num_shards).to(torch.int64).clamp_(max=num_shards - 1)


@dataclass(frozen=True)
class ShardedRecords:
    """Records ordered by shard, and within a shard by id.

    That order makes a shard's content independent of the others, and of the records' positions in a file.

    Attributes:
        records: All records, or outputs of a function for their images.
        starts: (n + 1,) int64; shard j has the positions from `starts[j]` to `starts[j + 1]`.
    """

    records: ImageDataset | MappedRecords
    starts: Tensor

    @classmethod
    def of(cls, records: ImageDataset, shards: Tensor, *, num_shards: int) -> ShardedRecords:
        """Sorts records into `num_shards` shards, given each record's shard in `shards` (N,) int64."""
        by_id = torch.argsort(records.ids)
        order = by_id[torch.argsort(shards[by_id], stable=True)]
        counts = torch.bincount(shards, minlength=num_shards)
        return cls(records=records.at(order), starts=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def positions(self, shard: int) -> range:
        """Returns the positions of one shard's records in `records`."""
        return range(int(self.starts[shard]), int(self.starts[shard + 1]))

    def to(self, device: torch.device) -> ShardedRecords:
        return ShardedRecords(records=self.records.to(device), starts=self.starts)

    def mapped(self, function: Callable[[Tensor], Tensor], *, key: str) -> ShardedRecords:
        """Returns a copy whose images are replaced by `function` of each, computed once and kept in half precision.

        Computed shard by shard with a new copy of `function`, since neither the number of images in a call, which may
        affect the last bits, nor a state that `function` keeps may reveal another shard.
        """
        assert isinstance(self.records, ImageDataset)
        parts = [torch.as_tensor(self.positions(shard)) for shard in range(len(self))]
        records = MappedRecords.of(
            self.records, lambda images: copy.deepcopy(function)(images), key=key, parts=parts, dtype=torch.float16
        )
        return ShardedRecords(records=records, starts=self.starts)


class Shards(WrappedDataset):
    """Private records for n teachers on disjoint shards; training batches are step indices.

    A record's shard is a hash of its stable id (`shard_of`), so that removing, adding or replacing one record changes
    only one shard. A teacher's batch size and number of steps follow from settings, never from the size of its shard or
    of the largest one, which would reveal one shard's records to another teacher.

    Whether a shard is refused (too small, or without one of the classes) depends on the records. This is an unaccounted
    access to them, like everything that their owner does before the teachers are used.
    """

    def __init__(
        self,
        *,
        dataset: ImageDataModule,
        num_teachers: int = 250,
        batch_size: int = 32,
        steps_per_epoch: int = 100,
        require_all_classes: bool = True,
    ) -> None:
        """Stores the settings; no file is touched.

        Args:
            dataset: The private data set.
            num_teachers: n, the number of shards.
            batch_size: Number of records in a batch of one teacher; no shard may have fewer.
            steps_per_epoch: Number of steps per epoch of each teacher in training (progress, validation, checkpoint).
            require_all_classes: Refuse a shard that lacks a class, for which its teacher could never vote.
        """
        super().__init__(dataset=dataset, batch_size=batch_size)
        self.num_teachers = check_count("num_teachers", num_teachers, minimum=1)
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch, minimum=1)
        self.require_all_classes = require_all_classes
        self._shards: ShardedRecords | None = None

    @property
    def shard_settings(self) -> dict[str, float]:
        """Settings besides the number of teachers that assign records to shards, equal for all teachers of a file."""
        return {}

    def sharded(self, records: ImageDataset) -> ShardedRecords:
        """Sorts records into shards, each only by its own id."""
        shards = shard_of(records.ids, num_shards=self.num_teachers)
        return ShardedRecords.of(records, shards, num_shards=self.num_teachers)

    @property
    def shards(self) -> ShardedRecords:
        """The private records in shards; needs `setup("fit")`."""
        if self._shards is None:
            raise RuntimeError(f"the shards of {self.name} are not open: call setup('fit') first")
        return self._shards

    def setup(self, stage: str) -> None:
        """Opens what `stage` needs; before a fit, checks every shard.

        Raises:
            ValueError: A shard has fewer records than a batch, or lacks a class.
        """
        if stage == "fit" and self._shards is None:
            shards = self.sharded(self.dataset.records("train"))
            self._check(shards)
            self._shards = shards
        self.dataset.setup("test")

    def train_dataloader(self) -> StepIndices:
        """Returns the step indices of one epoch, each an int: teachers draw their batches by seed and step."""
        return StepIndices(self.steps_per_epoch)

    def _check(self, shards: ShardedRecords) -> None:
        sizes = shards.starts.diff()
        smallest = int(sizes.argmin())
        if int(sizes[smallest]) < self.batch_size:
            raise ValueError(
                f"shard {smallest} of {self.name} has {int(sizes[smallest])} record(s), fewer than "
                f"batch_size={self.batch_size}: lower it, or the number of teachers"
            )
        if not self.require_all_classes:
            return
        owners = torch.repeat_interleave(torch.arange(len(shards)), sizes)
        held = torch.zeros(len(shards), self.num_classes, dtype=torch.bool)
        held[owners, shards.records.labels] = True
        missing = torch.nonzero(~held)
        if len(missing):
            shard, label = (int(index) for index in missing[0])
            raise ValueError(
                f"shard {shard} of {self.name} has no record of class {label} ({self.class_names[label]!r}), for which "
                "its teacher could never vote: lower data.num_teachers, or allow it with data.require_all_classes=false"
            )
