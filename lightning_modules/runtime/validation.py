"""The name under which a validation's accuracy is logged: it says what the accuracy is of.

`val/accuracy` is of something kept apart, by which a run may be chosen: a selection half, or held-out private records.
Where a fit is validated on the public test split, the figure is one of that split: whoever chooses a run or a step by
it has no figure left that was not chosen, and `test_split/accuracy` says so.
"""

from __future__ import annotations

from lightning import LightningModule, Trainer
from torchmetrics import Metric

from lightning_modules.runtime.runs import datamodule_of

__all__ = ["KEPT_APART", "TEST_SPLIT", "log_validation_accuracy", "validation_metric"]

KEPT_APART = "val/accuracy"
TEST_SPLIT = "test_split/accuracy"


def validation_metric(trainer: Trainer) -> str:
    """`TEST_SPLIT` where the data module says that it validates on the test split, else `KEPT_APART`."""
    return TEST_SPLIT if getattr(datamodule_of(trainer), "evaluation", None) == "test" else KEPT_APART


def log_validation_accuracy(module: LightningModule, accuracy: Metric | float) -> None:
    """Logs it under the name that says what it is of.

    Args:
        module: In its validation.
        accuracy: Between 0 and 1.
    """
    module.log(validation_metric(module.trainer), accuracy, prog_bar=True)
