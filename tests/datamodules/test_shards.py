"""Shards: decided by stable ids, untouched by what happens in others, checked before any work; features of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.variants import LockedDigits
from torch import Tensor

from datamodules import Digits, ImageDataset, ShardedRecords, Shards, shard_of
from datamodules.base import Part
from datamodules.mapped import MappedRecords
from datamodules.records import id_fraction

N = 10


@pytest.fixture
def records() -> ImageDataset:
    return Digits().read("train")


def sharded(records: ImageDataset) -> ShardedRecords:
    return Shards(dataset=Digits(), num_teachers=N).sharded(records)


def changed(first: ShardedRecords, second: ShardedRecords) -> list[int]:
    """Shards whose inputs or labels differ."""
    found = []
    for shard in range(N):
        one, other = (kept.records.__getitems__(kept.positions(shard)) for kept in (first, second))
        if not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)):
            found.append(shard)
    return found


def without(records: ImageDataset, position: int) -> ImageDataset:
    return records.select(torch.arange(len(records)) != position)


def altered(records: ImageDataset, position: int) -> ImageDataset:
    """The same records, one of them with another image and label."""
    other = ImageDataset(images=records.images.clone(), labels=records.labels.clone(), ids=records.ids, peak=16)
    other.images[position] = 16 - other.images[position]
    other.labels[position] = (other.labels[position] + 1) % 10
    return other


def test_shards_are_disjoint_and_hold_everything(records: ImageDataset) -> None:
    shards = sharded(records)
    assert isinstance(shards.records, ImageDataset)
    assert sorted(shards.records.ids.tolist()) == sorted(records.ids.tolist()) and len(shards) == N
    assert shards.starts[0] == 0 and shards.starts[-1] == len(records)


@pytest.mark.parametrize("position", [0, 700, 1434])
def test_a_record_that_goes_or_changes_affects_its_shard_alone(records: ImageDataset, position: int) -> None:
    owner = int(shard_of(records.ids, num_shards=N)[position])
    assert changed(sharded(records), sharded(without(records, position))) == [owner]
    assert changed(sharded(records), sharded(altered(records, position))) == [owner]


@pytest.mark.parametrize("key", ["position", "content"])
def test_the_comparison_notices_shards_by_anything_else(
    records: ImageDataset, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """By position in the list, which a removal shifts; by content, with which a replaced record moves."""

    def by_position(ids: Tensor, *, num_shards: int) -> Tensor:
        return torch.arange(len(ids)) % num_shards

    def by_content(ids: Tensor, *, num_shards: int) -> Tensor:
        return given.images.sum((1, 2, 3)) % num_shards

    monkeypatch.setattr("datamodules.shards.shard_of", by_position if key == "position" else by_content)
    given = records
    whole = sharded(given)
    given = without(records, 5) if key == "position" else altered(records, 5)
    assert len(changed(whole, sharded(given))) > 1


def test_shards_are_no_part_of_the_validation_split(records: ImageDataset) -> None:
    """A shard drawn by the same hash as the split would be empty, or lie within it."""
    held_out = id_fraction(records.ids, purpose="validation") < 0.1
    shares = [float(held_out[shard_of(records.ids, num_shards=N) == shard].float().mean()) for shard in range(N)]
    assert min(shares) > 0.02 and max(shares) < 0.2


class NoSevens(Digits):
    """Digits without a 7 in shard 3."""

    def read(self, part: Part) -> ImageDataset:
        records = super().read(part)
        return records.select((shard_of(records.ids, num_shards=N) != 3) | (records.labels != 7))


def test_shards_that_are_too_small_or_lack_a_class_are_named() -> None:
    with pytest.raises(ValueError, match=r"shard \d+ of Digits has \d+ record\(s\), fewer than batch_size=100.*lower"):
        Shards(dataset=Digits(), num_teachers=20, batch_size=100).setup("fit")
    with pytest.raises(ValueError, match=r"shard 3 of NoSevens has no record of class 7 .*require_all_classes=false"):
        Shards(dataset=NoSevens(), num_teachers=N, batch_size=8).setup("fit")
    allowed = Shards(dataset=NoSevens(), num_teachers=N, batch_size=8, require_all_classes=False)
    allowed.setup("fit")
    assert len(allowed.shards) == N


def test_only_a_fit_opens_the_private_part() -> None:
    data = Shards(dataset=LockedDigits(), num_teachers=N, batch_size=8)
    data.setup("test")
    assert len(next(iter(data.test_dataloader()))[1]) == 362
    with pytest.raises(RuntimeError, match="not open"):
        data.shards  # noqa: B018
    with pytest.raises(PermissionError):
        data.setup("fit")


# --- what a function makes of the images ---


class Watched:
    """Rows and columns added up, and how many images were in each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, images: Tensor) -> Tensor:
        self.calls.append(len(images))
        return torch.cat([images.sum(dim=2), images.sum(dim=3)], dim=2).flatten(1)


@pytest.mark.parametrize("workers", [1, 3])
def test_inputs_are_what_the_function_makes_of_each_image(records: ImageDataset, workers: int) -> None:
    function = Watched()
    parts = torch.arange(len(records)).split(500)
    mapped = MappedRecords.of(records, function, key="", parts=parts, workers=workers)
    assert sorted(function.calls) == [435, 500, 500] and len(mapped) == len(records) == 1435
    images, labels = records.__getitems__([3, 1400, 3])
    inputs, same = mapped.__getitems__([3, 1400, 3])
    assert inputs.shape == (3, 16) and torch.equal(inputs, Watched()(images)) and torch.equal(same, labels)


def test_features_are_computed_shard_by_shard(records: ImageDataset) -> None:
    """What is in one call must not tell of another shard."""
    plain, function = sharded(records), Watched()
    mapped = plain.mapped(lambda images: function(images), key="")
    assert torch.equal(mapped.starts, plain.starts)
    assert function.calls == [len(plain.positions(shard)) for shard in range(N)]
    images, labels = plain.records.__getitems__(plain.positions(4))
    inputs, same = mapped.records.__getitems__(mapped.positions(4))
    assert torch.equal(inputs, Watched()(images).half()) and torch.equal(same, labels)


def of_the_call(images: Tensor) -> Tensor:
    """Looks at all images of a call, as a matrix product's last bits may."""
    return images.flatten(1) + len(images) * 1e-3


class Peak:
    """Divides by the largest value that it has seen."""

    peak = 0.0

    def __call__(self, images: Tensor) -> Tensor:
        self.peak = max(self.peak, float(images.max()) + 1)
        return (images.flatten(1) + 1) / self.peak


def test_a_record_affects_the_features_of_its_shard_alone(records: ImageDataset) -> None:
    first, fewer = sharded(records), sharded(without(records, 700))
    owner = int(shard_of(records.ids, num_shards=N)[700])
    assert changed(first.mapped(of_the_call, key=""), fewer.mapped(of_the_call, key="")) == [owner]

    # The mutant asks about all shards in one call.
    def at_once(shards: ShardedRecords) -> ShardedRecords:
        whole = [torch.arange(len(shards.records))]
        return ShardedRecords(MappedRecords.of(shards.records, of_the_call, key="", parts=whole), shards.starts)

    assert changed(at_once(first), at_once(fewer)) == list(range(N))


def test_a_function_with_a_memory_takes_nothing_from_shard_to_shard(records: ImageDataset) -> None:
    dark = ImageDataset(images=records.images // 2, labels=records.labels, ids=records.ids)

    def affected(function: Callable[[], Any]) -> list[int]:
        """Whose features another image in shard 0 changes."""
        plain, bright = sharded(dark), sharded(dark)
        assert isinstance(bright.records, ImageDataset)
        bright.records.images[0] = 255
        return changed(plain.mapped(function(), key=""), bright.mapped(function(), key=""))

    assert affected(Peak) == [0]

    def of_python() -> Callable[[Tensor], Tensor]:
        peak = Peak()
        return lambda images: peak(images)

    assert len(affected(of_python)) == N  # the negative control: of a function of Python no copy is made
