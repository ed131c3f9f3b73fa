"""Shards: decided by stable ids, untouched by what happens in others, checked before any work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from datamodules import Digits, ImageDataset, ShardedRecords, Shards, shard_of
from datamodules.base import Part
from datamodules.records import id_fraction

N = 10


def contents(records: ImageDataset, *, num_shards: int = N) -> list[tuple[Tensor, ...]]:
    """Images, labels and ids of each shard."""
    shards = ShardedRecords.of(records, num_shards=num_shards)
    rows = [torch.tensor(shards.positions(shard)) for shard in range(num_shards)]
    kept = shards.records
    return [(kept.images[row], kept.labels[row], kept.ids[row]) for row in rows]


def changed(first: list[tuple[Tensor, ...]], second: list[tuple[Tensor, ...]]) -> list[int]:
    return [
        shard
        for shard, pair in enumerate(zip(first, second, strict=True))
        if not all(torch.equal(a, b) for a, b in zip(*pair, strict=True))
    ]


@pytest.fixture
def records() -> ImageDataset:
    return Digits().read("train")


def without(records: ImageDataset, position: int) -> ImageDataset:
    return records.select(torch.arange(len(records)) != position)


def test_shards_are_disjoint_and_hold_everything(records: ImageDataset) -> None:
    ids = torch.cat([ids for *_, ids in contents(records)])
    assert len(ids) == len(records) and set(ids.tolist()) == set(records.ids.tolist())
    assert torch.equal(shard_of(records.ids, num_shards=1), torch.zeros(len(records), dtype=torch.int64))


@pytest.mark.parametrize("position", [0, 700, 1434])
def test_taking_a_record_out_changes_its_shard_alone(records: ImageDataset, position: int) -> None:
    whole, owner = contents(records), int(shard_of(records.ids, num_shards=N)[position])
    assert changed(whole, contents(without(records, position))) == [owner]


@pytest.mark.parametrize("key", ["position", "content"])
def test_the_comparison_notices_shards_by_anything_else(
    records: ImageDataset, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """By position in the list, which a removal shifts; by content, with which a replaced record moves."""

    def by_position(ids: Tensor, *, num_shards: int) -> Tensor:
        return torch.arange(len(ids)) % num_shards

    def by_content(ids: Tensor, *, num_shards: int) -> Tensor:
        sums = {int(i): int(image.sum()) for i, image in zip(given.ids, given.images, strict=True)}
        return torch.tensor([sums[int(i)] % num_shards for i in ids])

    monkeypatch.setattr("datamodules.shards.shard_of", by_position if key == "position" else by_content)
    given = records
    whole = contents(given)
    given = without(records, 5)
    if key == "content":
        given = ImageDataset(images=records.images.clone(), labels=records.labels, ids=records.ids, peak=16)
        given.images[5] = (given.images[5] == 0).to(torch.uint8)
    assert len(changed(whole, contents(given))) > 1


def test_replacing_a_record_changes_its_shard_alone(records: ImageDataset) -> None:
    other = ImageDataset(images=records.images.clone(), labels=records.labels.clone(), ids=records.ids, peak=16)
    other.images[5] = 16 - other.images[5]
    other.labels[5] = (other.labels[5] + 1) % 10
    assert changed(contents(records), contents(other)) == [int(shard_of(records.ids, num_shards=N)[5])]


def test_shards_are_no_part_of_the_validation_split(records: ImageDataset) -> None:
    """A shard drawn by the same hash as the split would be empty, or lie within it."""
    held_out = id_fraction(records.ids, purpose="validation") < 0.1
    shares = [float(held_out[shard_of(records.ids, num_shards=N) == shard].float().mean()) for shard in range(N)]
    assert min(shares) > 0.02 and max(shares) < 0.2


@pytest.mark.parametrize("num_shards", [1, 3, 129, 250, 1000])
def test_a_fraction_next_to_one_has_a_shard(monkeypatch: pytest.MonkeyPatch, num_shards: int) -> None:
    monkeypatch.setattr("datamodules.shards.id_fraction", lambda ids, purpose: torch.tensor([1 - 2.0**-53]))
    assert int(shard_of(torch.tensor([0]), num_shards=num_shards)) == num_shards - 1


def test_a_shard_that_is_too_small_is_named() -> None:
    with pytest.raises(ValueError, match=r"shard \d+ of Digits has \d+ record\(s\), fewer than batch_size=100.*lower"):
        Shards(dataset=Digits(), num_teachers=20, batch_size=100).setup("fit")


class NoSevens(Digits):
    """Digits whose shard 3 of 10 lost its class 7."""

    def read(self, part: Part) -> ImageDataset:
        records = super().read(part)
        if part == "test":
            return records
        return records.select((shard_of(records.ids, num_shards=N) != 3) | (records.labels != 7))


def test_a_missing_class_is_named_and_may_be_allowed() -> None:
    with pytest.raises(ValueError, match=r"shard 3 of NoSevens has no record of class 7 .*require_all_classes=false"):
        Shards(dataset=NoSevens(), num_teachers=N, batch_size=8).setup("fit")
    allowed = Shards(dataset=NoSevens(), num_teachers=N, batch_size=8, require_all_classes=False)
    allowed.setup("fit")
    assert len(allowed.shards) == N


def test_only_a_fit_opens_the_private_part(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Shards(dataset=Digits(), num_teachers=N, batch_size=8)
    read = Digits.read

    def guarded(self: Digits, part: Part) -> ImageDataset:
        assert part == "test"
        return read(self, part)

    monkeypatch.setattr(Digits, "read", guarded)
    data.setup("test")
    assert len(next(iter(data.test_dataloader()))[1]) == 362
    with pytest.raises(RuntimeError, match="not open"):
        data.shards  # noqa: B018
    with pytest.raises(AssertionError):
        data.setup("fit")
