"""Stops all processes when one of them fails, instead of leaving the others waiting."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from privacy.processes import failed_everywhere


class NoLonelyCheckpoint(Callback):
    """After an error that not every process has met, writes no checkpoint: saving one waits for all of them.

    The others end when this process does. What was released stays charged.
    """

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Before the checkpoints' own: callbacks that save come last."""
        # Lightning notifies all processes of a SIGTERM before any of them raises.
        if trainer.world_size == 1 or failed_everywhere(exception) or isinstance(exception, SIGTERMException):
            return
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback.save_on_exception = False
