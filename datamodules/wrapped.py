"""Shared parts of all data modules around a data set: its public facts, and what is evaluated."""

from __future__ import annotations

from collections.abc import Sequence

from lightning import LightningDataModule

from datamodules.base import Batches, ImageDataModule, require_at_least
from datamodules.images import ImageDataset
from datamodules.shares import own_share
from datamodules.splits import selection_halves

__all__ = ["WrappedDataset"]


class WrappedDataset(LightningDataModule):
    """A data set whose training batches are made otherwise.

    `evaluation` is what is evaluated while fitting and by `validate`. `test`: the whole public test split, logged as
    `test_split/accuracy`. `selection`: one half of it by stable ids, to select by, logged as `val/accuracy`; `test` and
    the result record then measure on the other half. `validation`: private records that are held out of the training,
    which no guarantee covers; nothing may be chosen by them.

    Args:
        dataset: The data set.
        batch_size: Images per step, of all processes together.
        evaluation: What is evaluated.
        allowed: Allowed values of it.
        why: Added to the message of an error.

    Raises:
        ValueError: A setting is outside its range.
    """

    def __init__(
        self, *, dataset: ImageDataModule, batch_size: int, evaluation: str, allowed: Sequence[str], why: str = ""
    ) -> None:
        super().__init__()
        if not isinstance(dataset, ImageDataModule):
            raise ValueError(f"dataset must be an ImageDataModule, got {type(dataset).__name__}")
        if evaluation not in allowed:
            known = ", ".join(map(repr, allowed[:-1]))
            raise ValueError(f"evaluation must be {known} or {allowed[-1]!r}, got {evaluation!r}{why}")
        self.dataset = dataset
        self.batch_size = require_at_least(1, batch_size=batch_size)
        self.evaluation = evaluation
        self.name = dataset.name
        self.private_data = dataset.private_data
        self.num_classes = dataset.num_classes
        self.image_shape = dataset.image_shape
        self.num_records = dataset.num_records
        self.class_names = dataset.class_names
        self.metrics = dataset.metrics
        self.partition = dataset.partition

    @property
    def looks_at_private_records(self) -> bool:
        """Whether what is shown while fitting reveals private records without a bound."""
        return self.evaluation == "validation"

    @property
    def evaluated(self) -> ImageDataset:
        """What is evaluated while fitting."""
        if self.looks_at_private_records:
            return self.dataset.validation_records
        records = self.dataset.test_records
        return records if self.evaluation == "test" else selection_halves(records)[0]

    def val_dataloader(self) -> Batches:
        """Returns what is evaluated while fitting, in order."""
        return self._in_order(self.evaluated)

    def test_dataloader(self) -> Batches:
        """Returns the batches of the figure that is reported, in order."""
        records = self.dataset.test_records
        return self._in_order(records if self.evaluation != "selection" else selection_halves(records)[1])

    def predict_dataloader(self) -> Batches:
        """Returns the test batches."""
        return self.test_dataloader()

    def _in_order(self, records: ImageDataset) -> Batches:
        return own_share(self.dataset.evaluation_loader(records), self.trainer)
