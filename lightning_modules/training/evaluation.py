"""Metrics of a classifier: accuracy, and the area under the ROC curve where it is customary for the data set.

`val/accuracy` is measured on data kept apart for selection: a selection half, or held-out private records. A fit that
is validated on the public test split logs `test_split/accuracy` instead: a run or step chosen by it has no unbiased
figure left to report.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities.cloud_io import _load as read_anywhere
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy.stats import binomtest
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.functional.classification import multiclass_calibration_error, multiclass_confusion_matrix
from torchmetrics.utilities import dim_zero_cat

from datamodules.pictures import PictureDataModule, pictures_below, require_outside
from datamodules.records import Partition, require_classes, require_partition, same_data
from datamodules.wrapped import SyntheticSteps
from lightning_modules.networks.network import evaluating
from lightning_modules.training.hyperparameters import require_given, require_known_checkpoint
from lightning_modules.training.run import callbacks_of, datamodule_of, innermost, is_dev_run

AUROC = "auroc"
"""Name of the metric in `metrics` of a data module, in logs and in records."""


class AreaUnderCurve(MulticlassAUROC):
    """One-vs-rest areas under the ROC curves, averaged over the classes present, as in MedMNIST.

    With two classes both have the same area. A class of no image, or of every image, has no curve and is left out; with
    none left the value is NaN.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, average="none", thresholds=None)

    def add(self, answers: Tensor, labels: Tensor) -> None:
        """Adds a batch: labels (N,) and answers (N, c), which are logits, or int64 vote counts taken as shares."""
        # In single precision confident answers all round to 1 and have no order; Apple's GPUs have no other precision.
        precise = answers.detach().to(torch.float32 if answers.device.type == "mps" else torch.float64)
        votes = not answers.is_floating_point()
        self.update(precise / precise.sum(dim=1, keepdim=True) if votes else precise.softmax(dim=1), labels)

    def compute(self) -> Tensor:  # type: ignore[override]  # as torchmetrics' own does
        labels = dim_zero_cat(self.target)
        counts = labels.bincount(minlength=self.num_classes)
        there = (counts > 0) & (counts < len(labels))
        return super().compute()[there].mean() if bool(there.any()) else torch.tensor(torch.nan, device=labels.device)


class Evaluation(nn.Module):
    """Validation and test metrics, logged through the module that they belong to."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.val_auroc, self.test_auroc = AreaUnderCurve(num_classes), AreaUnderCurve(num_classes)

    def log(self, stage: Literal["val", "test"], module: LightningModule, logits: Tensor, labels: Tensor) -> None:
        """Logs metrics of logits or vote counts (N, c) on validation or test images with labels (N,)."""
        name = validation_metric(module.trainer) if stage == "val" else "test/accuracy"
        accuracy, area = getattr(self, f"{stage}_accuracy"), getattr(self, f"{stage}_auroc")
        accuracy(logits.float(), labels)
        module.log(name, accuracy, prog_bar=stage == "val")
        if asks_for_auroc(module.trainer):
            area.add(logits, labels)
            module.log(f"{name.rpartition('/')[0]}/{AUROC}", area)


class Evaluated(LightningModule, ABC):
    """Mixin for loading, validation, test and prediction of a module from images (N, C, H, W) to logits (N, c)."""

    evaluation: Evaluation

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        *arguments: Any,
        weights_only: bool | None = None,
        named: Collection[str] = (),
        **settings: Any,
    ) -> Any:
        """Loads a module as Lightning does. Nothing is unpickled unless `weights_only` is False, for trusted files.

        Code from other packages is only built if it is in `named`, or the setting is given again.

        Raises:
            CheckpointError: The checkpoint names unknown code, see `require_known_code`, or a script gave an object (a
                mechanism, a prior) that is not given again.
        """
        if weights_only is not False:
            content = read_anywhere(checkpoint_path, map_location="cpu", weights_only=True)
            if not isinstance(checkpoint_path, (str, Path)):
                checkpoint_path.seek(0)
            where, named = str(checkpoint_path), [f"{cls.__module__}.{cls.__qualname__}", *named]
            require_known_checkpoint(content, given=settings, named=named, where=where)
            require_given(content.get("distillation", {}).get("objects", ()), settings, checkpoint=where)
        settings["weights_only"] = weights_only is not False
        return super().load_from_checkpoint(checkpoint_path, *arguments, **settings)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits, (N, C, H, W) → (N, c)."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs accuracy: a student's on public images, a teacher's on held-out private ones."""
        self.evaluation.log("val", self, self(batch[0]), batch[1])

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluation.log("test", self, self(batch[0]), batch[1])

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Returns probabilities (N, c) for images or a batch with labels. They are as private as the network."""
        images = batch[0] if isinstance(batch, (list, tuple)) else batch
        probabilities: Tensor = self(images).float().softmax(dim=1)
        return probabilities


def validation_metric(trainer: Trainer) -> str:
    """Returns the name of the accuracy that a fit's validation logs."""
    on_test = getattr(datamodule_of(trainer), "evaluation", None) == "test"
    return "test_split/accuracy" if on_test else "val/accuracy"


def validation_names(trainer: Trainer) -> set[str]:
    """Names of the metrics of a fit's validation; none if it has no validation."""
    name = validation_metric(trainer)
    names = {name, f"{name.rpartition('/')[0]}/{AUROC}"} if asks_for_auroc(trainer) else {name}
    return names if trainer.enable_validation else set()


def meaning(shape: tuple[int, int, int], class_names: Sequence[str] | None) -> str:
    """Describes inputs and outputs, since a teacher with other sizes or another class order raises no error."""
    names = ", ".join(f"{label} = {name}" for label, name in enumerate((class_names or ())[:20])) or "unknown"
    more = ", ..." if class_names and len(class_names) > 20 else ""
    return f"Images of {' x '.join(map(str, shape))} (channels, height, width) in [-1, 1]; outputs: {names}{more}"


def require_public(trainer: Trainer, partitions: Sequence[Partition | None]) -> None:
    """Refuses images for validation or test that may be the teacher's private ones, or of other classes.

    Raises:
        PartitionError: They may.
    """
    data = datamodule_of(trainer)
    require_classes(partitions, data)
    require_partition(partitions, data)


def require_public_fit(trainer: Trainer, partitions: Sequence[Partition | None]) -> None:
    """Refuses a fit that looks at images which may be private, see `require_public`, or is not planned by its epochs.

    Raises:
        ValueError: The validation data may be private, and a student selected by it would leak it uncharged.
    """
    if trainer.max_steps not in (None, -1) and not is_dev_run(trainer):
        raise ValueError(
            f"trainer.max_steps must be left out, got {trainer.max_steps}: a run is charged by its epochs, "
            "beforehand. Set trainer.max_epochs and data.steps_per_epoch"
        )
    data = datamodule_of(trainer)
    if data is None and not trainer.limit_val_batches:
        return
    if not isinstance(data, SyntheticSteps):
        raise ValueError(
            "data.class_path must be SyntheticSteps in a student's fit, which looks at public records only, got "
            f"{type(data).__name__}"
        )
    judged_on = innermost(data)
    if isinstance(judged_on, PictureDataModule):  # pictures in a folder inside the private one have another name
        others = [one for one in partitions if one and not same_data(one, judged_on.partition)]
        test = judged_on.folder / "test"
        if others:  # links followed
            shown = [test, *pictures_below(test if test.is_dir() else judged_on.folder)]
            require_outside(others, shown, named="data.dataset.root")
    require_public(trainer, partitions)


def require_monitored(trainer: Trainer, names: set[str]) -> None:
    """Refuses callbacks and schedules that monitor none of the `names` logged: they would fail after an epoch.

    Lightning's own callbacks and this project's log none; what others log is not known.

    Raises:
        ValueError: There is one, and no callback that may log it.
    """
    callbacks: list[Any] = callbacks_of(trainer)
    if any(type(one).__module__.partition(".")[0] not in ("lightning", "lightning_modules") for one in callbacks):
        return
    for one in [*callbacks, *trainer.lr_scheduler_configs]:
        monitor = getattr(one, "monitor", None)
        known = {*names, "epoch", "step"} if isinstance(one, ModelCheckpoint) else names
        if getattr(one, "_check_on_train_epoch_end", False) and trainer.check_val_every_n_epoch != 1:
            known = known - validation_names(trainer)  # which some epochs lack
        if monitor is not None and getattr(one, "strict", True) and monitor not in known:
            raise ValueError(
                f"monitor of {type(getattr(one, 'scheduler', one)).__name__} must be what this fit logs, "
                f"{', '.join(sorted(known))} (a class of yours adds to it in logged_names), got {monitor!r}"
            )


def refuse_selection(trainer: Trainer) -> None:
    """Refuses callbacks that select by a metric of private records.

    Raises:
        ValueError: There is such a callback.
    """
    for callback in callbacks_of(trainer):
        if (monitor := getattr(callback, "monitor", None)) is not None:
            raise ValueError(
                f"{type(callback).__name__} chooses by {monitor!r}, which is measured on private records here: wrap "
                "the data in PoissonSampled with evaluation=test, or leave the callback out and publish the last step"
            )


def asks_for_auroc(trainer: Trainer) -> bool:
    """Whether the data module asks for the area under the ROC curve."""
    return AUROC in getattr(datamodule_of(trainer), "metrics", ())


@torch.no_grad()
def measured_on(classify: Any, loader: Any, device: torch.device, *, auroc: bool = False) -> dict[str, Any]:
    """Measures a network, or any function from images to logits, on labelled images.

    Returns:
        `accuracy` on `test_images` images and its 95 % `accuracy_interval` (Wilson); `balanced_accuracy`, the mean of
        `recall`, which has one value for each class, None for one without images; `class_images`; `majority_share` of
        the images in `majority_class`, the accuracy of always saying that one; `largest_share`, the share of images
        that are assigned the most frequent class (1 for a collapsed network); `calibration_error`, expected over 15
        bins; for two classes, or with `auroc`, the area under the ROC curves; up to 50 classes, `confusion`, the number
        of images by class (rows) and answer.
    """
    given: list[Tensor] = []
    right: list[Tensor] = []
    with evaluating(classify) if isinstance(classify, nn.Module) else nullcontext():
        for images, labels in loader:
            given.append(classify(images.to(device)).cpu())
            right.append(labels)
    outputs, targets = torch.cat(given), torch.cat(right)
    number, classes = outputs.shape
    error = multiclass_calibration_error(outputs.float().softmax(dim=1), targets, num_classes=classes)
    confusion = multiclass_confusion_matrix(outputs.argmax(dim=1), targets, num_classes=classes)
    counts, hits = confusion.sum(dim=1), confusion.diag()
    recall = [
        round(hit / count, 6) if count else None for hit, count in zip(hits.tolist(), counts.tolist(), strict=True)
    ]
    known = [value for value in recall if value is not None]
    interval = binomtest(int(hits.sum()), number).proportion_ci(method="wilson")
    area = AreaUnderCurve(classes)
    if auroc or classes == 2:
        area.add(outputs, targets)
    return {
        "accuracy": int(hits.sum()) / number,
        "accuracy_interval": [round(float(interval.low), 6), round(float(interval.high), 6)],
        "test_images": number,
        "balanced_accuracy": round(sum(known) / len(known), 6),
        "recall": recall,
        "class_images": counts.tolist(),
        "majority_share": int(counts.max()) / number,
        "majority_class": int(counts.argmax()),
        "calibration_error": round(float(error), 6),
        "largest_share": int(confusion.sum(dim=0).max()) / number,
        **({AUROC: float(area.compute())} if auroc or classes == 2 else {}),
        **({"confusion": confusion.tolist()} if classes <= 50 else {}),
    }
