"""Data modules that wrap a data set, with its public facts and its evaluation; training without data among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning import LightningDataModule

from datamodules.base import Batches, ImageDataModule, Part
from datamodules.records import ImageDataset, selection_halves
from privacy.checks import check_choice, check_count
from privacy.ledger_place import DataHome

_FACTS = ("name", "num_classes", "image_shape", "num_records", "class_names", "metrics", "label_decides", "assumptions")
_OF_EVALUATION = ("val_dataloader", "test_dataloader", "evaluated")
_OF_DATASETS = ("official_validation", "states_bound", *_FACTS)


def _take_facts(module: Any, dataset: Any) -> None:
    """Gives a data module a data set and its public facts."""
    if not isinstance(dataset, ImageDataModule):
        raise ValueError(f"dataset must be an ImageDataModule, got {type(dataset).__name__}")
    for fact in _OF_DATASETS if isinstance(module, ImageDataModule) else _FACTS:
        setattr(module, fact, getattr(dataset, fact))
    module.dataset = dataset


class DerivedDataset(ImageDataModule):
    """A data set made from another one's records, with the same public facts and loader settings.

    Raises:
        ValueError: `dataset` is not a data set.
    """

    dataset: ImageDataModule

    def __init__(self, *, dataset: ImageDataModule) -> None:
        _take_facts(self, dataset)
        same = ("root", "batch_size", "val_fraction", "num_workers", "download", "verify")
        super().__init__(**{name: getattr(dataset, name) for name in same})

    @property
    def partition(self) -> dict[str, Any]:
        return self.dataset.partition

    @property
    def home(self) -> DataHome | None:
        return self.dataset.home

    def fetch(self, part: Part) -> None:
        self.dataset.fetch(part)


class WrappedDataset(LightningDataModule):
    """A data set with training batches of another kind.

    `evaluation` sets the records evaluated while fitting and by `validate`. `test` is the whole public test split,
    logged as `test_split/accuracy`. `selection` is one half of it by stable ids, to select by, logged as
    `val/accuracy`; `test` and the result record then use the other half. `batch_size` counts images per step over all
    processes.

    Raises:
        ValueError: A setting is invalid, or a derived class overrides what is evaluated: that may be private records,
            and a step could be selected by them.
    """

    dataset: ImageDataModule
    name: str
    num_classes: int
    image_shape: tuple[int, int, int]
    num_records: int | None
    class_names: tuple[str, ...]
    metrics: tuple[str, ...]
    assumptions: tuple[str, ...]

    def __init__(self, *, dataset: ImageDataModule, batch_size: int, evaluation: str = "test") -> None:
        super().__init__()
        for kind in type(self).__mro__:
            if kind.__module__.startswith("datamodules."):
                break
            if own := [name for name in _OF_EVALUATION if name in vars(kind)]:
                raise ValueError(
                    f"{own[0]} must not be overridden, and {kind.__name__} does: it may return private records without "
                    "a charge. Return public records from read('test') of dataset"
                )
        _take_facts(self, dataset)
        check_choice("evaluation", evaluation, ("test", "selection"))
        self.batch_size = check_count("batch_size", batch_size, minimum=1)
        self.evaluation = evaluation
        self.private_data = dataset.private_data
        self.partition = dataset.partition

    @property
    def home(self) -> DataHome | None:
        return self.dataset.home

    def prepare_data(self) -> None:
        """Downloads what is missing, if the data set's `download` is set."""
        self.dataset.prepare_data()

    @property
    def evaluated(self) -> ImageDataset:
        """Records evaluated while fitting."""
        records = self.dataset.test_records
        return records if self.evaluation == "test" else selection_halves(records)[0]

    def val_dataloader(self) -> Batches:
        return self.dataset.loader(self.evaluated)

    def test_dataloader(self) -> Batches:
        """Returns the batches of the reported figure, in order."""
        records = self.dataset.test_records
        reported = selection_halves(records)[1] if self.evaluation == "selection" else records
        return self.dataset.loader(reported)

    def predict_dataloader(self) -> Batches:
        return self.test_dataloader()


class StepIndices:
    """Counts the steps of an epoch: 0 to `steps - 1`, and continues where a checkpoint stopped.

    Lightning accepts any iterable with a length as a loader. This one is not a `DataLoader`, so each of several
    processes takes all steps, and it has a state that Lightning saves and restores: with a plain `range`, a run resumed
    in the middle of an epoch would get the first indices again.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._start = 0
        self._next = 0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        """Yields the indices, from the restored one on the first time after a restore."""
        start, self._start = self._start, 0
        for step in range(start, self.steps):
            self._next = step + 1
            yield step

    def state_dict(self) -> dict[str, int]:
        """Returns the next index; 0 when the epoch is over."""
        return {"next": self._next % self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._start = self._next = min(state["next"], self.steps)


class SyntheticSteps(WrappedDataset):
    """No training data at all: training batches are step indices, from which the model draws its own latent inputs.

    The student is evaluated on `dataset`. **Only its test split** is opened: it is public by assumption and has the
    only real images that this stage sees. The private training part is never read, and its files may be missing.
    Nothing is selected on the test split: tables report the last step. For selection (a sweep, early stopping) use
    `evaluation="selection"`, which keeps half of it for the reported figure.

    Records held out of a teacher's training are as private as its training records: a student's fit never opens them.
    Their owner may evaluate the finished student on them (`LightningCLI validate` with the data set itself).
    """

    def __init__(
        self, *, dataset: ImageDataModule, steps_per_epoch: int = 100, batch_size: int = 256, evaluation: str = "test"
    ) -> None:
        """Wraps a data set.

        Args:
            dataset: The data set to evaluate on, which gives the classes and the image shape.
            steps_per_epoch: Number of training steps per epoch (evaluation follows each epoch).
            batch_size: Synthetic images per step over all processes; linked to the model, which draws them.
            evaluation: What is evaluated while fitting, `test` or `selection`; see `WrappedDataset`.
        """
        super().__init__(dataset=dataset, batch_size=batch_size, evaluation=evaluation)
        self.steps_per_epoch = check_count("steps_per_epoch", steps_per_epoch, minimum=1)

    def prepare_data(self) -> None:
        """Downloads the files to evaluate on, if the data set's `download` is set."""
        if self.dataset.download:
            self.dataset.fetch("test")

    def setup(self, stage: str) -> None:
        """Opens the evaluation data, whatever the stage."""
        self.dataset.setup("test")

    def train_dataloader(self) -> StepIndices:
        return StepIndices(self.steps_per_epoch)
