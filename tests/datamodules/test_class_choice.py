"""Some of a data set's classes: found by name or position, numbered anew, known by a name of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from datamodules import CIFAR10, Digits, ImageDataset
from datamodules.base import Part
from datamodules.records import positions_of


def test_records_of_other_classes_are_left_out_and_the_rest_numbered_anew() -> None:
    whole, chosen = Digits(), Digits(classes=[7, "3"])
    for data in (whole, chosen):
        data.setup("fit")
        data.setup("test")
    for split in ("train_records", "validation_records", "test_records"):
        before, after = getattr(whole, split), getattr(chosen, split)
        kept = (before.labels == 7) | (before.labels == 3)
        assert torch.equal(after.ids, before.ids[kept]) and torch.equal(after.images, before.images[kept])
        assert torch.equal(after.labels, (before.labels[kept] == 3).long())
    assert (chosen.num_classes, chosen.class_names, chosen.kept_classes) == (2, ("7", "3"), (7, 3))
    assert (whole.num_classes, whole.kept_classes, Digits.num_classes) == (10, None, 10)


def test_a_choice_has_a_name_of_its_own_whatever_the_order_and_the_private_data_keep_theirs() -> None:
    """A record may be in several choices, and one ledger has to count what all of them release."""
    chosen = [Digits(classes=classes) for classes in ([7, 3], [3, 7], [3, 8], None)]
    assert [one.name for one in chosen] == ["Digits-3-7", "Digits-3-7", "Digits-3-8", "Digits"]
    assert {one.private_data for one in chosen} == {"Digits/train"}
    long = [Digits(classes=classes).name for classes in (range(5), [4, 3, 2, 1, 0], range(1, 6))]
    assert long[0].startswith("Digits-5of10-") and long[0] == long[1] != long[2]
    assert CIFAR10(classes=["cat", "dog"]).name == "CIFAR10-cat-dog"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([3], r"at least 2 classes of Digits, each once, got \[3\]"),
        ([3, 4, 3], "at least 2 classes of Digits, each once, got"),
        ([3, 10], r"positions from 0 to 9 of Digits's classes \(0, 1, .*\), got 10"),
        ([3, -1], "got -1"),
        ("37", "must be a list of names or positions, got '37'"),
    ],
)
def test_a_choice_of_no_use_is_refused(classes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Digits(classes=classes)


def test_names_count_before_positions_and_aliases_are_taken() -> None:
    assert positions_of([1, "n2"], names=("5", "1", "0"), aliases=("n1", "n3", "n2"), dataset="x") == (1, 2)
    with pytest.raises(ValueError, match="x has several named 'crane', at positions 0, 2: give the position"):
        positions_of(["crane", "dog"], names=("crane", "dog", "crane"), dataset="x")
    assert positions_of([0, 2], names=("crane", "dog", "crane"), dataset="x") == (0, 2)


def test_a_part_without_the_classes_is_refused() -> None:
    class Others(Digits):
        def read(self, part: Part) -> ImageDataset:
            records = super().read(part)
            return records.select((records.labels != 3) & (records.labels != 7))

    with pytest.raises(ValueError, match=r"classes=\['3', '7'\] leaves the test part of Others-3-7 empty"):
        Others(classes=[3, 7]).records("test")
