"""The private classifier to transcribe, trained on private data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from lightning import Callback
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from lightning_modules.callbacks.results import PredictionWriter
from lightning_modules.images import shifted
from lightning_modules.networks import NetworkCallable, SmallCNN, build_network
from lightning_modules.teachers.own_training import OwnTraining
from lightning_modules.training.evaluation import Evaluated, Evaluation, require_monitored, validation_names
from lightning_modules.training.hyperparameters import keep_plain_hyperparameters
from lightning_modules.training.manual_optimization import OptimizedGroup
from lightning_modules.training.run import check_strategy, missing_callbacks, steps_planned

#: Tolerance of the frequencies' sum, since they are written with few digits.
_ROUNDING = 1e-2


class Teacher(Evaluated):
    """Trains any classifier by cross-entropy, with automatic optimization.

    Its output is as private as its training data: nothing bounds what it reveals about a record.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        network: Builds the classifier.
        optimizer: Default: Adam, in a one-cycle schedule over the whole fit with a peak rate of 3e-3.
        lr_scheduler: A schedule that is stepped once per epoch and replaces the one-cycle schedule. With `optimizer`
            but without this, the rate is constant. `lightning.pytorch.cli.ReduceLROnPlateau` follows the metric that
            it monitors, except in derived classes that take their steps by hand, which refuse it.
        class_prior: *Public* class frequencies, c numbers that add up to 1; records are not counted for them. Their
            logarithms are added to the logits in the loss, so that the logits themselves are those for a population
            with equally frequent classes (Menon et al. 2021, "Long-tail learning via logit adjustment", Eq. 10). For
            data with other class frequencies than where the classifier is used.
        augment: Train on mirrored and `shifted` images, for photographs.

    Raises:
        ValueError: `class_prior` is out of range, a derived class does not use `augment`, or the network does not give
            c logits for such an image.
    """

    #: Whether a class with a training step of its own uses `augment` in it.
    augments = False

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: NetworkCallable = SmallCNN,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        class_prior: Sequence[float] | None = None,
        augment: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        keep_plain_hyperparameters(self)
        self.num_classes = num_classes
        self.image_shape = (image_shape[0], image_shape[1], image_shape[2])
        self.network = build_network(
            network, num_classes=num_classes, image_shape=self.image_shape, name="model.network"
        )
        self.optimizer_factory = optimizer
        self.scheduler_factory = lr_scheduler
        self.class_prior = class_prior
        if augment and not self.augments and type(self).training_step is not Teacher.training_step:
            raise ValueError(f"augment has no effect in {type(self).__name__}: leave it out")
        self.augment = augment
        log_prior = None if class_prior is None else log_prior_of(class_prior, num_classes=num_classes)
        self.criterion = PriorCrossEntropy(log_prior)
        self.evaluation = Evaluation(num_classes)
        self.own_training = OwnTraining(type(self).__name__)

    def setup(self, stage: str) -> None:
        """Refuses a strategy that is not supported.

        Raises:
            ProcessesError: The strategy is not supported; the message says what to set.
        """
        if stage == "fit":
            check_strategy(self.trainer, self)

    def on_fit_start(self) -> None:
        """Gives the training its identity, which tells this teacher from any other."""
        require_monitored(self.trainer, self.logged_names())
        self.own_training.begin(self)
        self.own_training.register(None)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (N, C, H, W) → (N, c)."""
        logits: torch.Tensor = self.network(images)
        return logits

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Cross-entropy on private images (N, C, H, W) and labels (N,)."""
        images, labels = batch
        loss: torch.Tensor = self.criterion(self(self.augmented(images)), labels)
        self.log("train/loss", loss)
        return loss

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        """Images (N, C, H, W) to train on, `shifted` if `augment`."""
        return shifted(images) if self.augment else images

    def logged_names(self) -> set[str]:
        """Names of what a fit logs, which callbacks may monitor; a class that logs more adds it."""
        return validation_names(self.trainer) | {"train/loss"}

    def on_test_start(self) -> None:
        """Raises `PartitionError` for data whose public records are not those of the training."""
        self.own_training.require_partition(self.trainer)

    on_validation_start = on_predict_start = on_test_start

    def configure_callbacks(self) -> list[Callback]:
        return missing_callbacks(self.trainer, PredictionWriter)

    def try_optimizer(self) -> None:
        """See `OptimizedGroup.try_out`; a schedule of the user's is stepped once per epoch."""
        group = OptimizedGroup(self.network.parameters(), self.optimizer_factory, self.scheduler_factory)
        group.try_out(steps=steps_planned(self.trainer), automatic=self.automatic_optimization)

    def on_train_epoch_end(self) -> None:
        """Steps the user's schedule, which Lightning does under automatic optimization alone."""
        if self.scheduler_factory is not None and not self.automatic_optimization:
            self.lr_schedulers().step()  # type: ignore[union-attr]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        self.try_optimizer()
        optimizer = (self.optimizer_factory or partial(torch.optim.Adam, lr=3e-3))(self.parameters())
        if self.scheduler_factory is not None:
            group = OptimizedGroup((), None, self.scheduler_factory)
            schedule = group.schedule(optimizer, steps=steps_planned(self.trainer))
            return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": getattr(schedule, "monitor", "")}
        if self.optimizer_factory is not None:
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the training's identity, and its data's public name and size, which a guarantee needs."""
        self.own_training.save(checkpoint, trainer=self._trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.own_training.load(checkpoint)


def log_prior_of(class_prior: Sequence[float], *, num_classes: int) -> Tensor:
    """Logarithms of the classes' frequencies, (c,), float32, given above 0 with a sum of 1 within 1 %.

    Raises:
        ValueError: They are not.

    >>> log_prior_of([0.5, 0.5], num_classes=2)
    tensor([-0.6931, -0.6931])
    """
    # In float64: the smallest frequencies underflow in float32, and a logit of minus infinity has no finite loss.
    shares = torch.tensor(class_prior, dtype=torch.float64)
    if shares.shape != (num_classes,) or not (shares > 0).all() or not abs(float(shares.sum()) - 1) <= _ROUNDING:
        raise ValueError(f"class_prior must be {num_classes} numbers above 0 that add up to 1, got {class_prior}")
    return shares.log().float()


class PriorCrossEntropy(nn.CrossEntropyLoss):
    """Mean cross-entropy of logits (N, c) plus the logarithms of class frequencies.

    Menon et al. 2021, "Long-tail learning via logit adjustment", Eq. 10.

    Args:
        log_prior: (c,), see `log_prior_of`; None adds nothing.
    """

    def __init__(self, log_prior: Tensor | None = None) -> None:
        super().__init__()
        self.log_prior = log_prior

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits if self.log_prior is None else logits + self.log_prior.to(logits), labels)


class InnerProduct(PriorCrossEntropy):
    """Minus the labels' mean logit, of logits (N, c): a linear head's gradient is minus its input in the label's row.

    A step on sums of clipped gradients then releases the sum of features of each class.
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.nll_loss(logits, labels, reduction=self.reduction)
