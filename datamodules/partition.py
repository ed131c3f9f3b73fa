"""Partitions identify a data set's private records by its settings; a teacher's file keeps one for comparison.

Data with another name and in another folder are assumed to share no private record with the teacher's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

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
                    f"{name} of the data is {is_now!r}, and {whose} says {was!r} of {one['data']}: records that are "
                    f"private there may be in the public test split here. Set {name} to what it was; other records "
                    "need a folder and a name of their own"
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
                f"{', '.join(one['class_names'])}, in this order: rename the folders, or choose and order them with "
                "classes"
            )
