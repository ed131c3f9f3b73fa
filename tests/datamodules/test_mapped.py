"""What a function made of images in their place: computed once, each image by itself, each shard by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from datamodules import Digits, ImageDataset, ShardedRecords, shard_of
from datamodules.mapped import MappedRecords

N = 10


@pytest.fixture
def records() -> ImageDataset:
    return Digits().read("train")


class Watched:
    """Rows and columns added up, and how many images were in each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, images: Tensor) -> Tensor:
        self.calls.append(len(images))
        return torch.cat([images.sum(dim=2), images.sum(dim=3)], dim=2).flatten(1)


def test_inputs_are_what_the_function_makes_of_each_image(records: ImageDataset) -> None:
    function = Watched()
    mapped = MappedRecords.of(records, function, parts=torch.arange(len(records)).split(500))
    assert function.calls == [500, 500, 435] and len(mapped) == len(records) == 1435
    images, labels = records.__getitems__([3, 1400, 3])
    inputs, same = mapped.__getitems__([3, 1400, 3])
    assert inputs.shape == (3, 16) and torch.equal(inputs, Watched()(images)) and torch.equal(same, labels)
    # By a tensor as by a list.
    assert torch.equal(mapped.__getitems__(torch.tensor([3, 1400, 3]))[0], inputs)
    # A mutant whose rows are out of step is another set of records.
    assert not torch.equal(MappedRecords(mapped.inputs.roll(1, dims=0), mapped.labels).__getitems__([3])[0], inputs[:1])


def test_the_shards_of_mapped_records_are_those_of_the_images(records: ImageDataset) -> None:
    plain = ShardedRecords.of(records, num_shards=N)
    function = Watched()
    mapped = plain.mapped(lambda images: function(images))
    assert len(mapped) == N and torch.equal(mapped.starts, plain.starts)
    # Shard by shard: what is in one call must not tell of another shard.
    assert function.calls == [len(plain.positions(shard)) for shard in range(N)]
    for shard in range(N):
        rows = torch.tensor(mapped.positions(shard))
        images, labels = plain.records.__getitems__(rows)
        inputs, same = mapped.records.__getitems__(rows)
        assert torch.equal(inputs, Watched()(images).half().float()) and torch.equal(same, labels)
    assert torch.equal(
        mapped.to(torch.device("cpu")).records.__getitems__([0, 99])[0], mapped.records.__getitems__([0, 99])[0]
    )


class OfTheCall:
    """Looks at all images of a call, as a matrix product's last bits may."""

    def __call__(self, images: Tensor) -> Tensor:
        return images.flatten(1) + len(images) * 1e-3


def changed(first: ShardedRecords, second: ShardedRecords) -> list[int]:
    found = []
    for shard in range(len(first)):
        one, other = (kept.records.__getitems__(torch.tensor(kept.positions(shard)))[0] for kept in (first, second))
        if one.shape != other.shape or not torch.equal(one, other):
            found.append(shard)
    return found


@pytest.mark.parametrize("position", [0, 700, 1434])
def test_taking_a_record_out_changes_the_features_of_its_shard_alone(records: ImageDataset, position: int) -> None:
    fewer = records.select(torch.arange(len(records)) != position)
    first, second = (ShardedRecords.of(kept, num_shards=N) for kept in (records, fewer))
    owner = int(shard_of(records.ids, num_shards=N)[position])
    assert changed(first.mapped(OfTheCall()), second.mapped(OfTheCall())) == [owner]

    # The mutant asks about all shards in one call.
    def at_once(shards: ShardedRecords) -> ShardedRecords:
        assert isinstance(shards.records, ImageDataset)
        whole = [torch.arange(len(shards.records))]
        return ShardedRecords(MappedRecords.of(shards.records, OfTheCall(), parts=whole), shards.starts)

    assert changed(at_once(first), at_once(second)) == list(range(N))


def test_threads_change_nothing_and_their_errors_are_raised() -> None:
    data = Digits()
    data.setup("test")
    records = data.test_records
    parts = torch.arange(len(records)).split(50)
    alone = MappedRecords.of(records, lambda images: images.flatten(1) * 2, parts=parts)
    threads = torch.get_num_threads()
    found = MappedRecords.of(records, lambda images: images.flatten(1) * 2, parts=parts, workers=3)
    assert torch.equal(found.inputs, alone.inputs) and torch.equal(found.labels, records.labels)

    def fail(images: torch.Tensor) -> torch.Tensor:
        if len(images) < 50:
            raise RuntimeError("the last piece")
        return images

    with pytest.raises(RuntimeError, match="the last piece"):
        MappedRecords.of(records, fail, parts=parts, workers=3)
    assert torch.get_num_threads() == threads


class Peak:
    """Divides by the largest value that it has seen."""

    peak = 0.0

    def __call__(self, images: Tensor) -> Tensor:
        self.peak = max(self.peak, float(images.max()) + 1)
        return (images.flatten(1) + 1) / self.peak


def _shards_changed(records: ImageDataset, function: Callable[[], Callable[[Tensor], Tensor]]) -> list[int]:
    """Whose features another image in shard 0 changes."""
    dark = ImageDataset(images=records.images // 2, labels=records.labels, ids=records.ids)
    plain = ShardedRecords.of(dark, num_shards=N)
    before = plain.mapped(function()).records.inputs
    plain.records.images[0] = 255
    after = plain.mapped(function()).records.inputs
    return [
        shard for shard in range(N) if not torch.equal(before[plain.positions(shard)], after[plain.positions(shard)])
    ]


def test_a_function_with_a_memory_takes_nothing_from_shard_to_shard(records: ImageDataset) -> None:
    assert _shards_changed(records, Peak) == [0]
    # The negative control: of a function of Python no copy is made.
    assert len(_shards_changed(records, _of_python)) == N


def _of_python() -> Callable[[Tensor], Tensor]:
    peak = Peak()
    return lambda images: peak(images)
