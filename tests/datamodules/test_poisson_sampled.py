from __future__ import annotations

from copy import copy
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from datamodules import Digits, ImageDataset, PoissonBatches, PoissonSampled
from datamodules.base import Part
from privacy.mechanisms.base import NoiseSource, ReproducibleNoise


def inclusion(*, steps: int = 100, own: slice = slice(None), seed: int = 0) -> np.ndarray:
    """(steps, 400) whether a record, of those that are `own`, was in a step's batch at rate 0.3."""
    noise, rows = ReproducibleNoise(seed=seed), np.zeros((steps, 400), dtype=bool)
    for step, taken in enumerate(PoissonBatches(records=400, sample_rate=0.3, steps=steps, noise=noise, own=own)):
        rows[step, np.arange(400)[own][taken]] = True
    return rows


def test_coins_are_independent_and_have_the_rate() -> None:
    rows = inclusion()

    def p_value(rate: float) -> float:
        return float(stats.binomtest(int(rows.sum()), rows.size, rate).pvalue)

    assert p_value(0.3) > 1e-3
    assert p_value(0.2) < 1e-20 and p_value(0.45) < 1e-20
    # Batch sizes vary as coins do; a sampler of fixed size, or one that shuffles, would show none or other variance.
    sizes = rows.sum(axis=1)
    spread = (sizes.var(ddof=1) * 99) / (400 * 0.3 * 0.7)
    assert 1e-3 < stats.chi2.cdf(spread, 99) < 1 - 1e-3
    assert stats.chi2.cdf(np.zeros(1).var(), 99) < 1e-3


def test_two_runs_of_one_seed_sample_differently() -> None:
    torch.manual_seed(0)
    first = list(PoissonBatches(records=100, sample_rate=0.5, steps=2))
    torch.manual_seed(0)
    assert first != list(PoissonBatches(records=100, sample_rate=0.5, steps=2))


def test_rates_without_meaning_are_refused() -> None:
    for rate in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="sample_rate"):
            PoissonBatches(records=10, sample_rate=rate, steps=1)
    data = PoissonSampled(dataset=Digits(), batch_size=1276)
    data.setup("fit")
    with pytest.raises(ValueError, match="batch_size must not exceed the 1275 training records of Digits, got 1276"):
        data.train_dataloader()


class Mixing(ImageDataset):
    """Mixes the records of a batch."""

    def __getitems__(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().__getitems__(indices)
        return images.lerp(images.roll(1, 0), 0.3), labels


class OfMixing(Digits):
    def read(self, part: Part) -> ImageDataset:
        records = super().read(part)
        return Mixing(images=records.images, labels=records.labels, ids=records.ids, peak=records.peak)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._splits = {part: self.read("test") for part in self._splits}  # `select` would make ordinary ones


class OfMeans(Digits):
    """Trains on means of two records: an `ImageDataset` all the same."""

    @property
    def loaded_records(self) -> ImageDataset:
        records = copy(self.train_records)
        records.images = ((records.images.int() + records.images.roll(1, 0)) // 2).to(torch.uint8)
        return records


@pytest.mark.parametrize(("kind", "told"), [(OfMixing, "a Mixing"), (OfMeans, "a loaded_records of its own")])
def test_records_come_as_they_are(monkeypatch: pytest.MonkeyPatch, kind: type[Digits], told: str) -> None:
    with pytest.raises(ValueError, match=rf"read\(\) of {kind.__name__} must .* got {told}"):
        PoissonSampled(dataset=kind(), batch_size=100).setup("fit")
    PoissonSampled(dataset=Digits(), batch_size=100).setup("fit")
    # Without the check a record depends on who else is there.
    monkeypatch.setattr("datamodules.poisson_sampled.ImageDataset", Mixing)
    monkeypatch.setattr("datamodules.poisson_sampled.ImageDataModule", kind)
    data = kind()
    if kind is OfMixing:
        PoissonSampled(dataset=data, batch_size=100).setup("fit")
    data.setup("fit")
    drawn = data.loaded_records.__getitems__([0, 1])[0][0]
    assert not torch.equal(drawn, ImageDataset.__getitems__(data.train_records, [0])[0][0])


def test_no_record_is_likelier_than_the_analysis_says() -> None:
    """The words just above and below the threshold; the mutant rounds the coin down, as the code once did."""
    rate = 1 / 3
    exact = Fraction(rate) * 2**64
    words = np.array([int(exact) - 1, int(exact), int(exact) + 1], dtype=np.uint64)

    class Fixed(NoiseSource):
        def words(self, count: int) -> Any:
            return words[:count]

    taken = next(iter(PoissonBatches(records=3, sample_rate=rate, steps=1, noise=Fixed())))
    assert taken == [0]  # as many words lie below the threshold as the rate allows, rounded down
    assert Fraction(int(exact), 2**64) <= Fraction(rate)
    rounded_down = (words >> np.uint64(11)) * 2.0**-53 < rate
    assert rounded_down.sum() > len(taken)


@pytest.mark.parametrize("broken", [False, True])
def test_processes_take_one_poisson_sample_together(broken: bool) -> None:
    """Each tosses the coins of its own part. The mutant tosses those of all: a record has two chances."""
    parts = [slice(None) if broken else slice(rank, None, 2) for rank in range(2)]
    taken = np.logical_or(*(inclusion(own=own, seed=rank) for rank, own in enumerate(parts)))
    assert (float(stats.binomtest(int(taken.sum()), taken.size, 0.3).pvalue) > 1e-3) is not broken
    # Of a source that can be drawn again, they take the sample of one process.
    one, other = (inclusion(steps=1, own=own, seed=7).astype(int) for own in parts)
    assert np.array_equal(one + other, inclusion(steps=1, seed=7)) is not broken


def test_features_are_those_of_the_batch() -> None:
    data = PoissonSampled(dataset=Digits(), batch_size=200, steps_per_epoch=6, noise=ReproducibleNoise(seed=5))
    data.setup("fit")
    data.precompute(lambda images: images.flatten(1), key="")
    again = PoissonBatches(records=1275, sample_rate=data.sample_rate, steps=6, noise=ReproducibleNoise(seed=5))
    for (inputs, labels), positions in zip(data.train_dataloader(), again, strict=True):
        images, expected = data.dataset.train_records.__getitems__(positions)
        assert torch.equal(inputs, images.flatten(1)) and torch.equal(labels, expected)


def test_rates_epochs_and_batches_that_may_be_empty() -> None:
    data = PoissonSampled(dataset=Digits(), batch_size=255)
    data.setup("fit")
    assert data.sample_rate == pytest.approx(255 / 1275) and len(data.train_dataloader()) == 5
    data = PoissonSampled(dataset=Digits(), batch_size=1, steps_per_epoch=50, noise=ReproducibleNoise(seed=0))
    data.setup("fit")
    sizes = [len(labels) for _, labels in data.train_dataloader()]
    assert len(sizes) == 50 and 0 in sizes
    assert next(iter(PoissonBatches(records=5, sample_rate=1.0, steps=1))) == [0, 1, 2, 3, 4]


class People(Digits):
    """The digits, each person with about 9 of them."""

    def read(self, part: Part) -> ImageDataset:
        records = super().read(part)
        records.identities = records.ids % 150
        return records


@pytest.mark.parametrize("world", [1, 3])
def test_a_person_is_sampled_whole_and_by_one_coin(world: int) -> None:
    taken = []
    for rank in range(world):
        data = PoissonSampled(dataset=People(), batch_size=40, steps_per_epoch=20, noise=ReproducibleNoise(seed=3))
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)  # type: ignore[assignment]
        data.setup("fit")
        assert data.train_records.identities is not None
        people, sizes = torch.unique(whose := data.train_records.identities, return_counts=True)
        assert not torch.isin(data.dataset.validation_records.identities, people).any()  # type: ignore[arg-type]
        data.number_records()
        data.sample_persons()
        if rank == 0:
            data.precompute(lambda images: images.flatten(1), key="")
        for step, (_, rows, counts) in enumerate(data.train_dataloader()):
            drawn, found = torch.unique_consecutive(whose[rows], return_counts=True)
            assert counts.tolist() == found.tolist() == [int(sizes[people == person]) for person in drawn]
            taken += [(step, person) for person in drawn.tolist()]
    # Each coin once, whatever the number of processes: those of the same words for as many records.
    coins = PoissonBatches(records=len(people), sample_rate=40 / len(people), steps=20, noise=ReproducibleNoise(seed=3))
    assert sorted(taken) == [(step, int(person)) for step, drawn in enumerate(coins) for person in people[drawn]]


def test_what_cannot_be_sampled_by_person() -> None:
    for dataset, message in (
        (Digits(), "data.dataset.person_pattern"),
        (People(), r"the 1\d\d persons .with unit=person"),
    ):
        data = PoissonSampled(dataset=dataset, batch_size=151)
        data.setup("fit")
        with pytest.raises(ValueError, match=message):
            data.sample_persons()
            data.train_dataloader()


@pytest.mark.parametrize("end", ["teardown", "on_exception", "setup", "nothing"])
def test_a_fit_that_ends_leaves_no_features_behind(end: str) -> None:
    """Another network would be trained on them, and whoever holds its loaders would too; `nothing` is the control."""
    data = PoissonSampled(dataset=Digits(), batch_size=100)
    data.setup("fit")
    data.precompute(lambda images: images.flatten(1) * 2, key="")
    held = [*data._mapped.values()]
    if end != "nothing":
        getattr(data, end)(RuntimeError() if end == "on_exception" else "fit")
    ended = end != "nothing"
    assert [len(mapped.inputs) == 0 for mapped in held] == [ended, ended]
    assert next(iter(data.train_dataloader()))[0].shape[1:] == ((1, 8, 8) if ended else (64,))
