"""Training data of a shadow model: a random half of a data set's private records, with planted canaries."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules.base import ImageDataModule, Part
from datamodules.records import ImageDataset, id_fraction
from datamodules.wrapped import DerivedDataset
from privacy.checks import check_count


class Shadowed(DerivedDataset):
    """About half of another data set's private part, plus about half of the canaries.

    In each shadow a record's id decides its fair coin. Everything else, including the name, is as in the wrapped data
    set. Canaries are made of public data only: the first half are public test images with the label after the right one
    (`mislabelled`), the others random black and white pixels with a random label (`noise`), which no data set contains.

    Attributes:
        num_records: Number of records of the wrapped data set plus number of canaries, whatever the coins.
    """

    def __init__(self, *, dataset: ImageDataModule, number: int, canaries: int = 0) -> None:
        """Wraps a data set; no file is touched.

        Args:
            dataset: The private data set.
            number: Number of the shadow, from 0, which determines the coins.
            canaries: Number of canaries; each is planted in about half of the shadows.
        """
        self.private_name = dataset.private_data.removesuffix("/train")
        super().__init__(dataset=dataset)
        self.assumptions += (
            f"A SHADOW'S LEDGER: these are records of {self.private_data}, whose ledger does not count this training: "
            "it is for an attack, and nothing of it is published",
        )
        self.number = check_count("number", number)
        self.num_canaries = check_count("canaries", canaries)
        self.num_records = dataset.num_records and dataset.num_records + canaries

    @property
    def home(self) -> None:
        """Nothing leads from shadows to the ledger of the data: an attack is charged to none."""

    def members(self, ids: Tensor) -> Tensor:
        """Whether this shadow is trained on records with these ids (N,): (N,) bool, true for heads.

        Records held out for validation are never trained on, whatever their coin.
        """
        return id_fraction(ids, purpose=f"shadow-{self.number}") < 0.5

    def canaries(self) -> ImageDataset:
        """Returns all canaries, mislabelled ones first. Reads the public test part.

        Raises:
            ValueError: There are too few test images.
        """
        count, mislabelled = self.num_canaries, self.num_canaries // 2
        test = self.dataset.records("test")
        if len(test) < mislabelled:
            raise ValueError(f"canaries must be at most {2 * len(test)}, twice the test images, got {count}")
        first = test.at(torch.argsort(test.ids)[:mislabelled])
        draw = torch.Generator().manual_seed(0)
        noise = torch.randint(2, (count - mislabelled, *self.image_shape), generator=draw, dtype=torch.uint8)
        drawn = torch.randint(self.num_classes, (len(noise),), generator=draw)
        # Below every ordinary id, and not held out for validation.
        ids = -3 - torch.arange(20 + round(2 * count / (1 - self.val_fraction)))
        ids = ids[id_fraction(ids, purpose="validation") >= self.val_fraction][:count]
        return ImageDataset(
            images=torch.cat([first.images[:], noise * test.peak]),
            labels=torch.cat([(first.labels + 1) % self.num_classes, drawn]),
            ids=ids,
            peak=test.peak,
        )

    def read(self, part: Part) -> ImageDataset:
        """Reads a part of the wrapped data set; of the private part only records and canaries with heads.

        Raises:
            ValueError: A record of the data set has a canary's id.
        """
        records = self.dataset.records(part)
        if part != "train":
            return records
        planted = self.canaries() if self.num_canaries else records.at(torch.arange(0))
        if bool(torch.isin(records.ids, planted.ids).any()):
            raise ValueError(f"canaries must have ids that no record of {self.name} has, and -3 and below are taken")
        kept, added = (part.select(self.members(part.ids)) for part in (records, planted))
        return ImageDataset(
            images=torch.cat([kept.images[:], added.images[:]]),
            labels=torch.cat([kept.labels, added.labels]),
            ids=torch.cat([kept.ids, added.ids]),
            peak=records.peak,
            # Each canary is its own person.
            identities=None if kept.identities is None else torch.cat([kept.identities, added.ids]),
        )
