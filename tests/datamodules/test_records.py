"""Records, the splits that their ids decide, and a choice of their classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from datamodules import CIFAR10, Digits
from datamodules.records import ImageDataset, id_fraction


def records(peak: int = 255, **change: Any) -> ImageDataset:
    images = torch.arange(256).clamp_max(peak).to(torch.uint8).reshape(4, 1, 8, 8)
    given = {"images": images, "labels": torch.arange(4), "ids": torch.tensor([3, 1, 8, 5]), "peak": peak}
    return ImageDataset(**{**given, **change})


@pytest.mark.parametrize("peak", [16, 255])
def test_a_batch_is_its_records_from_minus_one_to_one(peak: int) -> None:
    data = records(peak)
    images, labels = data.__getitems__([3, 0])
    assert images.dtype == torch.float32 and labels.dtype == torch.int64 and labels.tolist() == [3, 0]
    assert torch.equal(images, torch.stack([data[3][0], data[0][0]])) and data[3][1].shape == ()
    assert (images.min(), images.max()) == (-1, 1)
    images.zero_()
    assert data.images.max() == peak  # the stored pixels are left alone
    # Poisson sampling draws empty batches now and then.
    assert [part.shape for part in data.__getitems__([])] == [(0, 1, 8, 8), (0,)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(4, 1, 8, 8)}, "images must be"),
        ({"images": torch.zeros(4, 8, 8, dtype=torch.uint8)}, "images must be"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels must be"),
        ({"ids": torch.arange(4).int()}, "ids must be"),
        ({"ids": torch.tensor([1, 2, 2, 3])}, "ids must be distinct"),
        ({"peak": 256}, "peak must be a number between 1 and 255"),
        ({"peak": 16, "images": records().images}, "must not exceed peak=16"),
    ],
)
def test_wrong_records_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        records(**change)


# --- splits ---


def moved(assign_by_id: bool, removed: int) -> int:
    """How many of 2000 other records change split when one is removed, by hash of the id or of the position."""
    ids = torch.arange(2000)
    left = ids[ids != removed]

    def held_out(records: Tensor) -> Tensor:
        keys = records if assign_by_id else torch.arange(len(records))
        return id_fraction(keys, purpose="validation") < 0.1

    return int((held_out(ids)[ids != removed] != held_out(left)).sum())


def test_removing_a_record_moves_no_other() -> None:
    assert all(moved(True, removed) == 0 for removed in (0, 17, 1000, 1999))
    assert moved(False, 17) > 100  # a split by position would be noticed


def test_fractions_are_fixed_for_all_time() -> None:
    # Checkpoints, shards and ledgers of earlier versions stay comparable only while these do not change.
    fractions = id_fraction(torch.tensor([0, 1, 59_999, -1]), purpose="validation")
    expected = [0.28468225775499434, 0.07225900249843598, 0.3464189317509223, 0.3810288996909006]
    assert fractions.tolist() == expected


def test_fractions_are_uniform_and_purposes_unrelated() -> None:
    ids = torch.arange(60_000)
    one, two = id_fraction(ids, purpose="validation"), id_fraction(ids, purpose="shard")
    assert one.min() >= 0 and one.max() < 1
    for fraction in (0.01, 0.1, 0.5):
        # five standard deviations of a binomial share
        assert abs((one < fraction).double().mean() - fraction) < 5 * (fraction * (1 - fraction) / 60_000) ** 0.5
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 5 / 60_000**0.5


# --- chosen classes ---


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
    assert (chosen.num_classes, chosen.class_names, whole.num_classes) == (2, ("7", "3"), 10)


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
    ],
)
def test_a_choice_of_no_use_is_refused(classes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Digits(classes=classes)
