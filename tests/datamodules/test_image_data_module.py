from __future__ import annotations

from typing import Any

import pytest
import torch

from datamodules import Digits, ImageDataset, Shards
from datamodules.base import Part


class ReadsCounted(Digits):
    """Remembers which parts were read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.parts: list[Part] = []

    def read(self, part: Part) -> ImageDataset:
        self.parts.append(part)
        return super().read(part)


class ThreeParts(ReadsCounted):
    """The digits with an official validation part, by row number."""

    official_validation = True

    def read(self, part: Part) -> ImageDataset:
        if part == "test":
            return super().read(part)
        private = Digits.read(self, "train")
        self.parts.append(part)
        held_out = private.ids % 10 == 0
        return private.select(held_out if part == "validation" else ~held_out)


@pytest.mark.parametrize(
    ("kind", "stage", "parts"),
    [
        (ReadsCounted, "fit", ["train"]),
        (ReadsCounted, "validate", ["train"]),
        (ReadsCounted, "test", ["test"]),
        (ReadsCounted, "predict", ["test"]),
        (ThreeParts, "fit", ["train", "validation"]),
        (ThreeParts, "validate", ["validation"]),
        (ThreeParts, "test", ["test"]),
    ],
)
def test_a_stage_reads_only_its_parts_and_only_once(kind: type[ReadsCounted], stage: str, parts: list[Part]) -> None:
    data = kind()
    data.setup(stage)
    data.setup(stage)
    assert data.parts == parts


def test_nothing_is_held_out_of_a_training_part_beside_an_official_validation_part() -> None:
    data = ThreeParts(val_fraction=0.5)
    data.setup("fit")
    assert torch.equal(data.train_records.ids, data.read("train").ids)
    assert torch.equal(data.validation_records.ids, data.read("validation").ids)
    shards = Shards(dataset=ThreeParts(), num_teachers=3)
    shards.setup("fit")
    assert not bool((shards.shards.records.ids % 10 == 0).any())  # type: ignore[union-attr]


def test_validating_keeps_no_training_records() -> None:
    data = Digits()
    data.setup("validate")
    assert len(data.val_dataloader()) == 1
    with pytest.raises(RuntimeError, match=r"train split of Digits is not open: call setup\('fit'\)"):
        data.train_dataloader()


def test_a_batch_larger_than_the_data_is_refused() -> None:
    data = Digits(batch_size=1276)
    data.setup("fit")
    with pytest.raises(ValueError, match="batch_size must be at most the 1275 training records of Digits, got 1276"):
        data.train_dataloader()
