"""Data sets with an official validation part: three parts, each read for its own split alone."""

from __future__ import annotations

import pytest
import torch

from datamodules import Digits, ImageDataset, Shards
from datamodules.base import Part


class ThreeParts(Digits):
    """The digits in three parts by row number."""

    official_validation = True

    def __init__(self) -> None:
        super().__init__(val_fraction=0.5)
        self.parts: list[Part] = []

    def read(self, part: Part) -> ImageDataset:
        self.parts.append(part)
        if part == "test":
            return super().read("test")
        private = super().read("train")
        held_out = private.ids % 10 == 0
        return private.select(held_out if part == "validation" else ~held_out)


@pytest.mark.parametrize(
    ("stage", "parts"), [("fit", ["train", "validation"]), ("validate", ["validation"]), ("test", ["test"])]
)
def test_a_stage_reads_its_parts_alone(stage: str, parts: list[Part]) -> None:
    data = ThreeParts()
    data.setup(stage)
    data.setup(stage)
    assert data.parts == parts


def test_nothing_is_held_out_of_the_training_part() -> None:
    data = ThreeParts()
    data.setup("fit")
    assert torch.equal(data.train_records.ids, data.read("train").ids)
    assert torch.equal(data.validation_records.ids, data.read("validation").ids)
    assert len(data.validation_records) < 0.2 * len(data.train_records)


def test_teachers_on_shards_are_not_trained_on_it() -> None:
    data = Shards(dataset=ThreeParts(), num_teachers=3)
    data.setup("fit")
    assert not bool((data.shards.records.ids % 10 == 0).any())  # type: ignore[union-attr]
