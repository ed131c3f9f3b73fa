"""A data set with one record more or not: the two neighbours of an audit."""

from __future__ import annotations

from typing import Any, Literal

import torch

from datamodules.base import ImageDataModule, Part, require_at_least
from datamodules.images import ImageDataset
from datamodules.splits import id_fraction

__all__ = ["Planted"]


class Planted(ImageDataModule):
    """Another data set, to whose private training part one known record, the canary, is added or not.

    Everything else is as in the wrapped data set, its name as well: what a run writes does not reveal which of the two
    neighbours it saw. The canary is made only of public data, so that the auditor knows it.

    Attributes:
        num_records: That of the wrapped data set and 1, whether the canary is there or not.
    """

    def __init__(
        self,
        *,
        dataset: ImageDataModule,
        present: bool = True,
        kind: Literal["mislabelled", "pattern"] = "mislabelled",
        source: int = 0,
        label: int | None = None,
        record_id: int = -3,
    ) -> None:
        """Wraps a data set; no file is touched.

        Args:
            dataset: The private data set.
            present: Whether the canary is there.
            kind: `mislabelled`: an image of the public test part with a wrong label. `pattern`: a chessboard of
                the darkest and the brightest pixels, which no data set holds.
            source: Which image of the test part, counted in the order of ids.
            label: The canary's label. Default: the one after the right label, for `pattern` 0.
            record_id: The canary's stable id, which no other record has. The default is trained on, and not held out,
                at every `val_fraction` up to 0.99.

        Raises:
            ValueError: A setting is outside its range, or `record_id` would be held out for validation.
        """
        if not isinstance(dataset, ImageDataModule):
            raise ValueError(f"dataset must be an ImageDataModule, got {type(dataset).__name__}")
        super().__init__(
            root=dataset.root,
            batch_size=dataset.batch_size,
            eval_batch_size=dataset.eval_batch_size,
            val_fraction=dataset.val_fraction,
            num_workers=dataset.num_workers,
            download=dataset.download,
        )
        if kind not in ("mislabelled", "pattern"):
            raise ValueError(f"kind must be mislabelled or pattern, got {kind!r}")
        if label is not None and not 0 <= label < dataset.num_classes:
            raise ValueError(f"label must lie in [0, {dataset.num_classes}), got {label}")
        fraction = id_fraction(torch.tensor([record_id]), purpose="validation").item()
        if fraction < dataset.val_fraction and not dataset.official_validation:
            raise ValueError(
                f"record_id {record_id} would be held out at val_fraction={dataset.val_fraction}, and trained on by "
                "nobody: choose another"
            )
        self.dataset = dataset
        self.present = present
        self.kind = kind
        self.source = require_at_least(0, source=source)
        self.label = label
        self.record_id = record_id
        self.name = dataset.name
        self.num_classes = dataset.num_classes
        self.image_shape = dataset.image_shape
        self.num_records = dataset.num_records + 1
        self.class_names = dataset.class_names
        self.metrics = dataset.metrics
        self.official_validation = dataset.official_validation

    @property
    def private_data(self) -> str:
        """That of the wrapped data set."""
        return self.dataset.private_data

    @property
    def partition(self) -> dict[str, Any]:
        """That of the wrapped data set."""
        return self.dataset.partition

    def fetch(self, part: Part) -> None:
        """Downloads as the wrapped data set does."""
        self.dataset.fetch(part)

    def canary(self) -> ImageDataset:
        """Returns only the planted record, whether it is present or not. Reads the public test part.

        Raises:
            ValueError: The test part has no image number `source`, or the canary's label is the right one.
        """
        test = self.dataset.records("test")
        if self.kind == "pattern":
            rows, columns = torch.arange(self.image_shape[1]), torch.arange(self.image_shape[2])
            board = (rows[:, None] + columns).remainder(2) * test.peak
            images = board.to(torch.uint8).expand(1, *self.image_shape).clone()
            label = 0 if self.label is None else self.label
        else:
            if self.source >= len(test):
                raise ValueError(f"source must be below {len(test)}, the size of the test part, got {self.source}")
            position = int(torch.argsort(test.ids)[self.source])
            images, right = test.images[position : position + 1].clone(), int(test.labels[position])
            label = (right + 1) % self.num_classes if self.label is None else self.label
            if label == right:
                raise ValueError(f"label must be a wrong one for a mislabelled canary, got {label}, which is right")
        return ImageDataset(
            images=images, labels=torch.tensor([label]), ids=torch.tensor([self.record_id]), peak=test.peak
        )

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
