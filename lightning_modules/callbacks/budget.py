"""Ends a fit before the step that its budget does not allow."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lightning_modules.callbacks.data_free import data_free

__all__ = ["BudgetStop"]


class BudgetStop(Callback):
    """Ends the fit before the step that the target does not allow; the annotator would refuse it anyway."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks one step ahead."""
        module = data_free(pl_module)
        module.run.stop_before(trainer, calls=module.next_calls)
