"""A choice of a data set's classes, renumbered, with its own data set name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from datamodules.images import ImageDataset

_SPELLED_OUT = 4


@dataclass(frozen=True)
class ClassChoice:
    """The classes to keep, in the order of their new labels.

    Attributes:
        kept: official labels of the classes.
        names: names of the classes.
        label: suffix for the data set's name, equal for the same classes in any order.
    """

    kept: tuple[int, ...]
    names: tuple[str, ...]
    label: str

    @classmethod
    def of(
        cls, classes: Sequence[int | str], *, names: Sequence[str], aliases: Sequence[str] = (), dataset: str
    ) -> ClassChoice:
        """Finds classes by name, alias or position; names take precedence, even those made of digits.

        `names` and `aliases`, if any, are those of all classes, in the order of their labels.

        Raises:
            ValueError: A class does not exist, is given twice or shares its name with another one, or there are fewer
                than two classes.
        """
        if isinstance(classes, (str, int)):
            raise ValueError(f"classes must be a list of names or positions, got {classes!r}")
        kept = [_position(one, names, aliases, dataset) for one in classes]
        if len(kept) < 2:
            raise ValueError(f"classes must keep at least 2 classes of {dataset}, got {list(classes)}")
        repeated = next((one for one in kept if kept.count(one) > 1), None)
        if repeated is not None:
            raise ValueError(f"classes must name each class once, got {names[repeated]!r} of {dataset} twice")
        ordered = sorted(kept)
        if len(kept) <= _SPELLED_OUT:
            label = "-".join(re.sub(r"\W+", "_", names[one]) for one in ordered)
        else:
            digest = hashlib.blake2b(repr(ordered).encode(), digest_size=4).hexdigest()
            label = f"{len(kept)}of{len(names)}-{digest}"
        return cls(kept=tuple(kept), names=tuple(names[one] for one in kept), label=label)

    def of_records(self, records: ImageDataset, *, dataset: str, part: str) -> ImageDataset:
        """Returns the records of the kept classes with their new labels, ids as they were.

        Raises:
            ValueError: There are none.
        """
        labels = torch.full_like(records.labels, -1)
        for new, old in enumerate(self.kept):
            labels[records.labels == old] = new
        mask = labels >= 0
        if not mask.any():
            raise ValueError(f"classes={list(self.names)} leaves the {part} part of {dataset} empty")
        return records.select(mask).relabelled(labels[mask])


def _position(wanted: int | str, names: Sequence[str], aliases: Sequence[str], dataset: str) -> int:
    text = str(wanted)
    for known in (names, aliases):
        found = [position for position, name in enumerate(known) if name == text]
        if len(found) > 1:
            raise ValueError(
                f"classes: {dataset} has {len(found)} classes named {text!r}, at positions "
                f"{', '.join(map(str, found))}: give the position"
            )
        if found:
            return found[0]
    if text.isdecimal() and int(text) < len(names):
        return int(text)
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise ValueError(
        f"classes must be names or positions from 0 to {len(names) - 1} of {dataset}'s classes ({listed}), "
        f"got {wanted!r}"
    )
