"""Training without data: step indices for training, and the public test split for evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from datamodules.base import ImageDataModule
from datamodules.wrapped import WrappedDataset
from privacy.checks import check_count


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
        return self._count(start)

    def _count(self, start: int) -> Iterator[int]:
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
