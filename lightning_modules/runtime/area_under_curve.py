"""The area under the ROC curve, beside the accuracy where a data set's field asks for it."""

from __future__ import annotations

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torchmetrics.classification import MulticlassAUROC
from torchmetrics.utilities import dim_zero_cat

from lightning_modules.runtime.runs import datamodule_of

__all__ = ["AUROC", "AreaUnderCurve", "asks_for_auroc", "auroc_name", "log_auroc"]

AUROC = "auroc"
"""Its name in `metrics` of a data module, in logs and in records."""


class AreaUnderCurve(MulticlassAUROC):
    """One-vs-rest areas under the ROC curves, averaged over the classes that are there, as MedMNIST has it.

    With two classes this is the area of either of them. A class that no image has, or every image, has no curve and is
    left out; with none left the value is NaN.

    Args:
        num_classes: c.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, average="none", thresholds=None)

    def add(self, answers: Tensor, labels: Tensor) -> None:
        """Takes in a batch.

        Args:
            answers: (N, c) logits, or int64 counts of votes, whose shares are taken.
            labels: (N,).
        """
        # In single precision confident answers are all 1, and have no order; Apple's GPUs have no other.
        precise = answers.detach().to(torch.float32 if answers.device.type == "mps" else torch.float64)
        votes = not answers.is_floating_point()
        self.update(precise / precise.sum(dim=1, keepdim=True) if votes else precise.softmax(dim=1), labels)

    def compute(self) -> Tensor:  # type: ignore[override]  # as torchmetrics' own does
        """The mean area, between 0 and 1."""
        labels = dim_zero_cat(self.target)
        counts = labels.bincount(minlength=self.num_classes)
        there = (counts > 0) & (counts < len(labels))
        return super().compute()[there].mean() if bool(there.any()) else torch.tensor(torch.nan, device=labels.device)


def asks_for_auroc(trainer: Trainer) -> bool:
    """Whether the data module does."""
    return AUROC in getattr(datamodule_of(trainer), "metrics", ())


def auroc_name(beside: str) -> str:
    """Name of the area beside an accuracy: `val/auroc` beside `val/accuracy`."""
    return f"{beside.rpartition('/')[0]}/{AUROC}"


def log_auroc(module: LightningModule, area: AreaUnderCurve, logits: Tensor, labels: Tensor, *, beside: str) -> None:
    """Takes in a batch and logs the area, where the data module asks for it.

    Args:
        module: In its validation or test.
        area: A submodule of it.
        logits: (N, c).
        labels: (N,).
        beside: Name of the accuracy of the same images, such as `val/accuracy`.
    """
    if asks_for_auroc(module.trainer):
        area.add(logits, labels)
        module.log(auroc_name(beside), area)
