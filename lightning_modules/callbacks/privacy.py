"""Logs what a run has spent, and ends a fit before a step that its budget does not allow."""

from __future__ import annotations

from typing import Any

from lightning import Callback, Trainer

from lightning_modules.training.evaluation import require_public


class PrivacyCallback(Callback):
    """Logs both ε and the number of queries to every logger and the progress bar, and ends the fit in time.

    What no class may do without is checked here, since a class may override a hook of its base: a plan before the first
    step, and public images for validation, test and prediction.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Refuses a step without a plan.

        Raises:
            RuntimeError: A derived class has overridden `on_train_start`.
        """
        if not pl_module.begun:
            raise RuntimeError(
                f"on_train_start of {type(pl_module).__name__} must call that of its base class, which fixes the plan "
                "that the guarantee covers"
            )

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Raises `PartitionError` if public records may be the teacher's private ones, or classes differ."""
        require_public(trainer, pl_module.session.partitions)

    on_validation_start = on_predict_start = on_test_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Logs what was spent, and ends the fit before a step that the session would refuse."""
        if pl_module.is_logged:
            pl_module.log_dict(pl_module.spent(), prog_bar=True, on_step=True, on_epoch=False)
        pl_module.end_in_time()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Logs both ε with each validation accuracy, whatever `log_every_n_steps` leaves out."""
        if pl_module.session.is_open and not trainer.sanity_checking:
            pl_module.log_dict(pl_module.spent(), prog_bar=True, on_step=False, on_epoch=True, sync_dist=True)


class ForwardExceptions(Callback):
    """Calls the module's `on_exception(exception)`: Lightning itself calls that hook only for callbacks and data."""

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        pl_module.on_exception(exception)
