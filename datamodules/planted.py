"""A data set with one record more or not: the two neighbours of an audit."""

from __future__ import annotations

from typing import Literal

import torch

from datamodules.base import ImageDataModule, Part
from datamodules.images import ImageDataset
from datamodules.splits import id_fraction
from datamodules.wrapped import DerivedDataset

__all__ = ["Planted"]


class Planted(DerivedDataset):
    """Another data set, to whose private training part one known record, the canary, is added or not.

    Everything else is as in the wrapped data set, its name as well: what a run writes does not reveal which of the two
    neighbours it saw. The canary is made only of public data, so that the auditor knows it.

    Attributes:
        record_id: The canary's stable id, which no other record has. It is trained on, and not held out, at every
            `val_fraction` up to 0.99.
        num_records: That of the wrapped data set and 1, whether the canary is there or not.
    """

    record_id = -3

    def __init__(
        self,
        *,
        dataset: ImageDataModule,
        present: bool = True,
        kind: Literal["mislabelled", "pattern"] = "mislabelled",
    ) -> None:
        """Wraps a data set; no file is touched.

        Args:
            dataset: The private data set.
            present: Whether the canary is there.
            kind: `mislabelled`: the first image of the public test part, in the order of ids, with the label after the
                right one. `pattern`: a chessboard of the darkest and the brightest pixels, which no data set holds,
                with label 0.

        Raises:
            ValueError: A setting is outside its range, or the canary would be held out for validation.
        """
        super().__init__(dataset=dataset)
        if kind not in ("mislabelled", "pattern"):
            raise ValueError(f"kind must be mislabelled or pattern, got {kind!r}")
        fraction = id_fraction(torch.tensor([self.record_id]), purpose="validation").item()
        if fraction < dataset.val_fraction and not dataset.official_validation:
            raise ValueError(
                f"val_fraction must be below {fraction:.3f}, or the canary is held out, got {self.val_fraction}"
            )
        self.present = present
        self.kind = kind
        self.num_records = dataset.num_records and dataset.num_records + 1

    @property
    def private_data(self) -> str:
        """That of the wrapped data set."""
        return self.dataset.private_data

    def canary(self) -> ImageDataset:
        """Returns only the planted record, whether it is present or not. Reads the public test part."""
        test = self.dataset.records("test")
        if self.kind == "pattern":
            rows, columns = torch.arange(self.image_shape[1]), torch.arange(self.image_shape[2])
            board = (rows[:, None] + columns).remainder(2) * test.peak
            images, labels = board.to(torch.uint8).expand(1, *self.image_shape).clone(), torch.tensor([0])
        else:
            first = test.at(torch.argsort(test.ids)[:1])
            images, labels = first.images, (first.labels + 1) % self.num_classes
        return ImageDataset(images=images, labels=labels, ids=torch.tensor([self.record_id]), peak=test.peak)

    def read(self, part: Part) -> ImageDataset:
        """Reads the wrapped data set's part; the canary comes last in the private one.

        Raises:
            ValueError: A record of the data set has the canary's id.
        """
        records = self.dataset.records(part)
        if part != "train":
            return records
        if bool((records.ids == self.record_id).any()):
            raise ValueError(f"record_id must be an id that no record of {self.name} has, got {self.record_id}")
        if not self.present:
            return records
        one = self.canary()
        return ImageDataset(
            images=torch.cat([records.images, one.images]),
            labels=torch.cat([records.labels, one.labels]),
            ids=torch.cat([records.ids, one.ids]),
            peak=records.peak,
            # The canary is of no other person.
            identities=None if records.identities is None else torch.cat([records.identities, one.ids]),
        )
