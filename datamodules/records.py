"""Labelled images, with stable ids that decide all splits, and partitions, which a teacher's file names.

Privacy guarantees compare a data set with one from which a record was removed. This only works if the removal does not
affect the other records, so a split (like a teacher's shard) may depend only on the record's id, or its person's: not
on its content, and not on its position in a list, which a removal would shift.

A partition identifies a data set's private records by its settings; a teacher's file keeps one for comparison. Data
with another name and in another folder are assumed to share no private record with the teacher's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from privacy.checks import check_number

if TYPE_CHECKING:
    from datamodules.pictures import PictureFiles


@dataclass(kw_only=True, eq=False, repr=False)
class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels, each record with a stable id.

    Pixels are stored as in the files (one byte each) and become float32 in [-1, 1] when fetched. `DataLoader` asks
    `__getitems__` for a whole batch, which is one index operation instead of a Python loop over records; use
    `collate_fn=tuple` with it.

    Attributes:
        ids: (N,) int64, distinct, the stable id of every record, which decides splits and teachers' shards.
        images: (N, C, H, W) uint8, values 0 to `peak`; in memory, or pictures that are decoded when they are indexed.
        labels: (N,) int64.
        peak: Pixel value that maps to 1 (0 maps to -1), 1 to 255; given by the file format, never by the images.
        identities: (N,) int64, the person of each record, if the data set says; records of one person share it.
        names: N file names for tables of predictions, if each record has its own file.
    """

    images: Tensor | PictureFiles
    labels: Tensor
    ids: Tensor
    peak: int = 255
    identities: Tensor | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Checks the records.

        Raises:
            ValueError: A shape, type or range is not as described under Attributes, or an id occurs twice.
        """
        images, peak = self.images, check_number("peak", self.peak, least=1, most=255)
        if isinstance(images, Tensor) and (images.dim() != 4 or images.dtype != torch.uint8):
            raise ValueError(f"images must be (N, C, H, W) uint8, got {tuple(images.shape)} of {images.dtype}")
        for name, values in (("labels", self.labels), ("ids", self.ids), ("identities", self.identities)):
            if values is not None and (values.shape != (len(images),) or values.dtype != torch.int64):
                raise ValueError(f"{name} must be ({len(images)},) int64, got {tuple(values.shape)} of {values.dtype}")
        if len(torch.unique(self.ids)) != len(self.ids):
            raise ValueError("ids must be distinct: an id names one record")
        if peak < 255 and isinstance(images, Tensor) and images.numel() and int(images.max()) > peak:
            raise ValueError(f"images must not exceed peak={peak}, got a pixel of {int(images.max())}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns image (C, H, W) float32 in [-1, 1] and label () int64 of one position."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Returns images (B, C, H, W) float32 in [-1, 1] and labels (B,) int64 of many positions."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        # Dividing by half the peak is exact at both ends: 0 becomes -1 and the peak becomes 1, to the last bit.
        return self.images[rows].to(torch.float32).div_(self.peak / 2).sub_(1), self.labels[rows]

    def select(self, mask: Tensor) -> ImageDataset:
        """Returns a copy of the records where `mask` (N,) bool holds, ids kept."""
        return self.at(torch.nonzero(mask).flatten())

    def at(self, rows: Tensor) -> ImageDataset:
        """Returns a copy of the records at positions `rows` (M,) int64, in their order, ids kept."""
        own: dict[str, Any] = {name: kept[rows] for name, kept in vars(self).items() if isinstance(kept, Tensor)}
        if not isinstance(self.images, Tensor):
            own["images"] = self.images.at(rows)
        return replace(self, **own, names=self.names and [self.names[row] for row in rows.tolist()])

    def to(self, device: torch.device) -> ImageDataset:
        """Returns a copy on a device, where batches are then assembled; what is not in memory stays in its files."""
        if not isinstance(self.images, Tensor):
            return self
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def id_fraction(ids: Tensor, *, purpose: str) -> Tensor:
    """Maps every stable id, (N,) int64, to a fixed fraction in [0, 1) that looks uniform, (N,) float64.

    BLAKE2b of the id, with `purpose` (what is being decided, in at most 16 ASCII characters) as its public
    personalisation: two purposes give unrelated fractions, so that a shard drawn by id is not a subset of a split drawn
    by id. Nothing is secret or seeded: the same id has the same fraction on every machine and in every run.

    Raises:
        ValueError: `ids` is not one-dimensional int64, or `purpose` is too long.
    """
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise ValueError(f"ids must be a one-dimensional int64 tensor, got {tuple(ids.shape)} of {ids.dtype}")
    hashed = partial(hashlib.blake2b, digest_size=8, person=purpose.encode("ascii"))
    digests = [hashed(record.to_bytes(8, "little", signed=True)).digest() for record in ids.tolist()]
    # float64 holds 53 bits exactly; with all 64 the largest hashes would round up to 1.
    return torch.from_numpy((np.frombuffer(b"".join(digests), "<u8") >> 11) * 2.0**-53)


def ids_of_names(names: Sequence[str]) -> Tensor:
    """Maps names stored with the records to ids, (N,) int64: the first 8 bytes of a BLAKE2b hash.

    Among a million names, two collide with a probability below one in ten million. Equal names are numbered in order,
    which only affects their own ids.
    """
    seen: dict[str, int] = {}
    ids = []
    for name in names:
        before = seen.get(name, 0)
        seen[name] = before + 1
        text = f"{name}\0{before}" if before else name
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        ids.append(int.from_bytes(digest, "little", signed=True))
    return torch.tensor(ids, dtype=torch.int64)


def selection_halves(records: ImageDataset) -> tuple[ImageDataset, ImageDataset]:
    """Halves the test split by stable ids, identically in every run and on every machine.

    Runs and steps are selected by the first half only, so that selection does not bias the accuracy on the other half,
    which is reported. The halves have about equal sizes.

    Raises:
        ValueError: One half would be empty.
    """
    mask = id_fraction(records.ids, purpose="selection") < 0.5
    if mask.all() or not mask.any():
        raise ValueError(f"evaluation='selection' needs a test split that can be halved, got {len(records)} records")
    return records.select(mask), records.select(~mask)


Partition: TypeAlias = Mapping[str, Any]
"""Plain values of `ImageDataModule.partition`."""

_ABSENT = "no such setting"


class PartitionError(ValueError):
    """A data set's division into private and public records differs from the one in a teacher's file."""


def same_data(first: Partition, second: Partition) -> bool:
    """Whether two partitions are of one data set, by name or folder."""
    return bool(first["data"] == second["data"] or first["place"] == second["place"] is not None)


def disjoint(first: Partition, second: Partition) -> bool:
    """Whether no record is in both: different data, or different clients' shares in one partition."""
    mine, other = first["share"], second["share"]
    same = bool(mine and other) and (mine[0], first["settings"]) == (other[0], second["settings"])
    return not same_data(first, second) or (same and bool(mine[1] != other[1]))


def require_partition(partitions: Iterable[Partition | None], data: Any, *, whose: str = "the teacher's file") -> None:
    """Refuses data whose public test split may hold records that are private according to `partitions`.

    Args:
        partitions: Partitions in files; None for a file of plain weights, which has none to compare.
        data: A data module; one without `partition` is not compared.
        whose: Source of the partitions, for messages.

    Raises:
        PartitionError: The same data are divided differently, or the division of the teacher's data is unknown.
    """
    own: Partition | None = getattr(data, "partition", None)
    for one in partitions:
        if one is None and own is not None and own["settings"].get("test_fraction") is not None:
            raise PartitionError(
                f"test_fraction makes some records of {own['data']} public, and the teacher's file does not say "
                "which are private: they may be among them. Leave it out, and move public pictures into test/CLASS"
            )
        if one is None or own is None or not same_data(one, own):
            continue
        before, now = one["settings"], own["settings"]
        for name in sorted({*before, *now}):
            was, is_now = before.get(name, _ABSENT), now.get(name, _ABSENT)
            if was != is_now:
                raise PartitionError(
                    f"{name} of the data is {is_now!r}, and {whose} says {was!r} of {one['data']}: records private "
                    "there may be public. Set it to what it was; other records need a folder and a name of their own"
                )


def require_classes(partitions: Iterable[Partition | None], data: Any) -> None:
    """Refuses data whose classes, or their order, are not those of the teacher's outputs.

    Args:
        partitions: Partitions in files, see `require_partition`.
        data: A data module; one without `partition` is not compared.

    Raises:
        PartitionError: Labels would not mean what the teacher's outputs mean.
    """
    own: Partition | None = getattr(data, "partition", None)
    for one in partitions:
        if one is not None and own is not None and one.get("class_names") not in (None, own["class_names"]):
            raise PartitionError(
                f"the classes of the data are {', '.join(own['class_names'])}, and the teacher's outputs are "
                f"{', '.join(one['class_names'])}, in this order: rename the folders, or choose them with classes"
            )


def bytes_of(values: Tensor) -> memoryview:
    """Bytes of a tensor of any dtype, bfloat16 included, which NumPy lacks."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
