"""Splits that assign a record by its stable id only.

Privacy guarantees compare a data set with one from which a record was removed. This only works if the removal does not
affect the other records, so a split (like a teacher's shard) may depend only on the record's id, or its person's: not
on its content, and not on its position in a list, which a removal would shift.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from datamodules.images import ImageDataset


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
    person = purpose.encode("ascii")

    def fraction(record: int) -> float:
        digest = hashlib.blake2b(record.to_bytes(8, "little", signed=True), digest_size=8, person=person).digest()
        # float64 holds 53 bits exactly; with all 64 the largest hashes would round up to 1.
        return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)

    return torch.tensor([fraction(record) for record in ids.tolist()], dtype=torch.float64)


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
        raise ValueError(
            f"evaluation='selection' needs a test split that can be halved, got {len(records)} record(s): use 'test'"
        )
    return records.select(mask), records.select(~mask)
