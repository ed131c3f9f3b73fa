"""Poisson-sampled batches of private records, as the privacy analysis of DP-SGD assumes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules.base import EVALUATED_AT_ONCE, Batches, ImageDataModule
from datamodules.mapped import MappedRecords
from datamodules.records import ImageDataset
from datamodules.wrapped import WrappedDataset
from privacy.checks import check_count
from privacy.mechanisms.base import NoiseSource, SystemNoise

_CALLBACKS_HOOK = "on_train_batch_start"
_OF_BATCHES = (
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    _CALLBACKS_HOOK,
    "training_step",
    "train_dataloader",
)


class PoissonBatches:
    """Each step takes every record by its own coin; batches vary in size and may be empty.

    Coins come from the operating system's cryptographic generator: if the sample can be redrawn from the run's seed,
    amplification by sampling is lost.
    """

    def __init__(
        self,
        *,
        records: int,
        sample_rate: float,
        steps: int,
        noise: NoiseSource | None = None,
        own: slice = slice(None),
    ) -> None:
        """Samples `steps` times from `records` positions.

        Each of several processes gives the common rate and its own part of the records. Only one process tosses a
        record's coin, with words that no other process has, so a step's batches together are a Poisson sample of all
        records at that rate. Each process draws words for all records, which costs little: with a reproducible source
        all get the same words, and together take the sample of a single process.

        Args:
            records: Number of records.
            sample_rate: Probability that a record is in a batch.
            steps: Number of batches.
            noise: Source of the coins; None is the operating system.
            own: This process's part of the records; positions are counted within it.

        Raises:
            ValueError: `sample_rate` is not in (0, 1].
        """
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate must lie in (0, 1], got {sample_rate}")
        self.records = records
        self.steps = steps
        self.sample_rate = sample_rate
        self.noise = noise or SystemNoise()
        self.own = own

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yields a list of positions per step."""
        # An integer threshold, rounded down: never likelier than in the analysis.
        threshold = int(Fraction(self.sample_rate) * 2**64)
        for _ in range(self.steps):
            coins = self.noise.words(self.records)[self.own]
            taken = coins < np.uint64(threshold) if threshold < 2**64 else np.ones(len(coins), dtype=bool)
            yield np.flatnonzero(taken).tolist()


class PoissonLoader:
    """Loader of Poisson batches. Not a `DataLoader`, into which Lightning would insert its sampler under DDP."""

    def __init__(
        self, records: ImageDataset | MappedRecords, batches: PoissonBatches, *, identities: Tensor | None = None
    ) -> None:
        """Fetches `batches`, positions in `records`, or of persons in the order of their `identities` (N,)."""
        self.records = records
        self.batches = batches
        self._of_person: list[list[int]] | None = None
        if identities is not None:
            sizes = torch.unique(identities, return_counts=True)[1].tolist()
            self._of_person = [part.tolist() for part in torch.argsort(identities, stable=True).split(sizes)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Yields inputs (B, ...) and labels (B,); B may be 0.

        For persons, also yields the number of records of each (P,), which are adjacent.
        """
        for drawn in self.batches:
            if self._of_person is None:
                yield self.records.__getitems__(drawn)
                continue
            parts = [self._of_person[person] for person in drawn]
            counts = torch.tensor([len(part) for part in parts], dtype=torch.int64)
            yield *self.records.__getitems__([row for part in parts for row in part]), counts


def require_poisson(loader: Any, sample_rate: float, secure: bool) -> None:
    """Refuses batches that are not what a step is charged for: a callback may replace or change them within a fit.

    Raises:
        ValueError: It is not a `PoissonLoader`, or draws at another rate, in another way or from other records, or by
            coins that can be reproduced although `secure` ones are charged.
    """
    drawn: Any = getattr(loader, "batches", None)
    kinds = (type(loader), type(drawn), type(getattr(loader, "records", None)))
    # No subclasses, which may repeat or mix the records of a batch.
    as_drawn = kinds[:2] == (PoissonLoader, PoissonBatches) and kinds[2] in (ImageDataset, MappedRecords)
    if as_drawn and (drawn.sample_rate, drawn.noise.secure) == (sample_rate, secure):
        return
    raise ValueError(
        "train_dataloader() must give a PoissonLoader at the sample_rate that steps are charged for, "
        f"{sample_rate:g}, of PoissonBatches and an ImageDataset by the data's own noise, got "
        f"{', '.join(kind.__name__ for kind in kinds)} at {getattr(drawn, 'sample_rate', None)}"
    )


def require_batches_as_drawn(trainer: Any, *owners: tuple[Any, type]) -> None:
    """Refuses user code that makes or receives batches, since it may repeat or mix records.

    Args:
        trainer: Its callbacks are checked; Lightning's own may see batches.
        owners: A module and a data module, each with the class whose code may run.

    Raises:
        ValueError: A hook for batches, the training step or the loader is overridden.
    """
    found = [(hook, owner) for owner, parent in owners for hook in _OF_BATCHES if is_overridden(hook, owner, parent)]
    for callback in trainer.callbacks:
        if not str(getattr(getattr(callback, _CALLBACKS_HOOK), "__module__", "")).startswith("lightning.pytorch."):
            found.append((_CALLBACKS_HOOK, callback))
    if found:
        hook, owner = found[0]
        raise ValueError(
            f"{hook} must not be overridden for DP-SGD, and {type(owner).__name__} does: it may repeat or mix "
            "records, which nothing tests. Move operations on single images into the network"
        )


class PoissonSampled(WrappedDataset):
    """Private records for DP-SGD: Poisson sampling for training, everything else as in the wrapped data set.

    Each of several processes holds a part of the training records and samples from it; see `PoissonBatches`.
    """

    def __init__(
        self,
        *,
        dataset: ImageDataModule,
        batch_size: int = 2048,
        steps_per_epoch: int | None = None,
        evaluation: Literal["test", "selection"] = "test",
        noise: NoiseSource | None = None,
    ) -> None:
        """Stores the settings; no file is touched.

        Args:
            dataset: The private data set.
            batch_size: Expected size of a batch over all processes; the sample rate is this over the number of training
                records, or over a stated bound on it (`num_records` of `ImageFolder`). For a model with `unit: person`
                both are numbers of persons.
            steps_per_epoch: Number of steps per epoch. Default: as many as use each record once on average.
            evaluation: What is evaluated while fitting, `test` or `selection`; see `WrappedDataset`.
            noise: Source of the coins; None is the operating system.
        """
        super().__init__(dataset=dataset, batch_size=batch_size, evaluation=evaluation)
        check_count("steps_per_epoch", steps_per_epoch, minimum=1, null="each record once on average")
        self.steps_per_epoch = steps_per_epoch
        self.noise = noise
        self._mapped: dict[str, MappedRecords] = {}
        self._num_persons: int | None = None

    def setup(self, stage: str) -> None:
        """Opens the splits that `stage` needs; a fit begins with images, whatever an earlier one precomputed.

        Raises:
            ValueError: Records may be changed when fetched.
        """
        if stage == "fit":
            self._forget_precomputed()
            self._num_persons = None
            self.dataset.setup("fit")
            kind, own = type(self.dataset.train_records), type(self.dataset).loaded_records
            if kind is not ImageDataset or own is not ImageDataModule.loaded_records:
                raise ValueError(
                    f"read() of {self.name} must give an ImageDataset for DP-SGD, without loaded_records of its own, "
                    f"got a {'loaded_records of its own' if kind is ImageDataset else kind.__name__}: it may repeat or "
                    "mix records. Move operations on single images into the network"
                )
        self.dataset.setup("test")

    @property
    def secure(self) -> bool:
        """Whether the coins cannot be reproduced; else it is known who took part, and amplification is lost."""
        return self.noise is None or self.noise.secure

    @property
    def sample_rate(self) -> float:
        """Probability that a record, or person, is in a batch; needs `setup("fit")`.

        It is published, and ε reveals many of its digits. If a bound on N is stated, the rate is based on that bound,
        which also holds for persons, and batches are smaller than `batch_size`.

        Raises:
            ValueError: The expected batch is larger than what it is drawn from.
        """
        dataset = self.dataset
        units = (dataset.num_records if dataset.states_bound else None) or self._num_units
        if self.batch_size > units:
            counted = "training records" if self._num_persons is None else "persons (with unit=person)"
            raise ValueError(f"batch_size must not exceed the {units} {counted} of {self.name}, got {self.batch_size}")
        return self.batch_size / units

    @property
    def _num_units(self) -> int:
        return self._num_persons or len(self.dataset.train_records)

    def number_records(self) -> None:
        self.dataset.number_records()

    def sample_persons(self) -> None:
        """Samples each person, with all records, by one coin until the next `setup("fit")`.

        Raises:
            ValueError: The records' persons are not known.
        """
        own = self.train_records.identities
        if own is None:
            raise ValueError(
                f"unit=person needs data that say whose each picture is, and {self.name} does not: set "
                "data.dataset.person_pattern of ImageFolder, or take unit=record"
            )
        self._num_persons = len(torch.unique(own))

    @property
    def train_records(self) -> ImageDataset:
        """The private training records of all processes; needs `setup("fit")`."""
        return self.dataset.train_records

    def precompute(
        self, function: Callable[[Tensor], Tensor], *, key: str, workers: int = 1, dtype: torch.dtype | None = None
    ) -> None:
        """Replaces training images, and those evaluated while fitting, by `function` of them, computed once.

        For a network's fixed feature extractor, applied to each image by itself; see `MappedRecords.of`. It lasts until
        the fit ends, since other networks need images.
        """
        for split, records in (("train", self._own_records), ("validation", self.evaluated)):
            self._mapped[split] = MappedRecords.of(records, function, key=key, workers=workers, dtype=dtype)

    def teardown(self, stage: str) -> None:
        """Frees the features of `precompute`, which may take gigabytes."""
        if stage == "fit":
            self._forget_precomputed()

    def on_exception(self, exception: BaseException) -> None:
        """Does the same as `teardown`, which a failing fit does not reach."""
        self._forget_precomputed()

    def _forget_precomputed(self) -> None:
        for mapped in self._mapped.values():
            mapped.clear()
        self._mapped.clear()

    @property
    def _own(self) -> slice:
        """This process's share of the training records."""
        trainer = self.trainer
        return slice(None) if trainer is None else slice(trainer.global_rank, None, trainer.world_size)

    @property
    def _own_rows(self) -> Tensor:
        """Positions of this process's training records, or of all records of its persons."""
        rows = torch.arange(len(self.train_records))
        if self._num_persons is None or (identities := self.train_records.identities) is None:
            return rows[self._own]
        return rows[torch.isin(identities, torch.unique(identities)[self._own])]

    @property
    def _own_records(self) -> ImageDataset:
        records = self.dataset.loaded_records
        return records if self.trainer is None or self.trainer.world_size == 1 else records.at(self._own_rows)

    def train_dataloader(self) -> PoissonLoader:
        """Returns Poisson batches of this process's records; all processes make equally many steps."""
        steps = self.steps_per_epoch or max(1, round(1 / self.sample_rate))
        batches = PoissonBatches(
            records=self._num_units, sample_rate=self.sample_rate, steps=steps, noise=self.noise, own=self._own
        )
        identities = self.train_records.identities if self._num_persons else None
        return PoissonLoader(
            self._mapped.get("train") or self._own_records,
            batches,
            identities=None if identities is None else identities[self._own_rows],
        )

    def val_dataloader(self) -> Batches:
        """Returns the batches evaluated while fitting, in order."""
        mapped = self._mapped.get("validation")
        if mapped is None:
            return super().val_dataloader()
        return DataLoader(mapped, batch_size=EVALUATED_AT_ONCE, collate_fn=tuple)
