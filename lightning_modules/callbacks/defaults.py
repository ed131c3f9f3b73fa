"""Default callbacks of every data-free method, unless the trainer has its own."""

from __future__ import annotations

from lightning import Callback, Trainer

from lightning_modules.callbacks.budget import BudgetStop
from lightning_modules.callbacks.curves import Curves
from lightning_modules.callbacks.guarantee import GuaranteeWriter
from lightning_modules.callbacks.synthetic_images import SyntheticImages
from lightning_modules.runtime.predictions import prediction_callbacks
from lightning_modules.runtime.runs import callbacks_of

__all__ = ["default_callbacks"]


def default_callbacks(trainer: Trainer) -> list[Callback]:
    """Those of this module's callbacks that `trainer` does not have yet."""
    present = {type(callback) for callback in callbacks_of(trainer)}
    kinds: list[type[Callback]] = [BudgetStop, Curves, SyntheticImages, GuaranteeWriter]
    return [*(kind() for kind in kinds if kind not in present), *prediction_callbacks(trainer)]
