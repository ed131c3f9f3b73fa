from __future__ import annotations

from typing import Any

import pytest
import torch

from datamodules.records import ImageDataset


def records(peak: int = 255) -> ImageDataset:
    images = torch.arange(256).clamp_max(peak).to(torch.uint8).reshape(4, 1, 8, 8)
    return ImageDataset(images=images, labels=torch.arange(4), ids=torch.tensor([3, 1, 8, 5]), peak=peak)


@pytest.mark.parametrize("peak", [16, 255])
def test_pixels_span_minus_one_to_one_exactly(peak: int) -> None:
    images, _ = records(peak).__getitems__(range(4))
    assert images.dtype == torch.float32
    assert images.min() == -1 and images.max() == 1


def test_a_batch_is_its_records() -> None:
    data = records()
    images, labels = data.__getitems__([2, 0])
    assert torch.equal(images, torch.stack([data[2][0], data[0][0]]))
    assert labels.dtype == torch.int64 and labels.tolist() == [2, 0]
    assert data[2][1].shape == ()
    before = data.images.clone()
    images.zero_()
    assert torch.equal(data.images, before)  # the stored pixels are left alone


def test_an_empty_batch_keeps_its_shape() -> None:
    # Poisson sampling draws empty batches now and then.
    images, labels = records().__getitems__([])
    assert images.shape == (0, 1, 8, 8) and labels.shape == (0,)


def test_a_selection_keeps_ids() -> None:
    chosen = records().select(torch.tensor([True, False, True, False]))
    assert chosen.ids.tolist() == [3, 8] and chosen.labels.tolist() == [0, 2] and chosen.peak == 255
    with pytest.raises(ValueError, match="mask must be"):
        records().select(torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(4, 1, 8, 8)}, "images must be"),
        ({"images": torch.zeros(4, 8, 8, dtype=torch.uint8)}, "images must be"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels must be"),
        ({"labels": torch.zeros(4)}, "labels must be"),
        ({"ids": torch.arange(4).int()}, "ids must be"),
        ({"ids": torch.tensor([1, 2, 2, 3])}, "ids must be distinct"),
        ({"peak": 0}, "peak must be"),
        ({"peak": 16}, "must not exceed peak=16"),
    ],
)
def test_wrong_records_are_refused(change: dict[str, Any], message: str) -> None:
    data = records()
    given: dict[str, Any] = {"images": data.images, "labels": data.labels, "ids": data.ids, "peak": data.peak}
    with pytest.raises(ValueError, match=message):
        ImageDataset(**(given | change))
