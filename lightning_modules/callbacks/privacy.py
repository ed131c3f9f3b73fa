"""Logs what a run has spent, and ends a fit before a step that its budget does not allow."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lightning_modules.private_fit import LearnsFromTeacher, stop_before
from lightning_modules.training.evaluation import require_public


class PrivacyCallback(Callback):
    """Logs both ε and the number of queries to every logger and the progress bar, and ends the fit in time.

    What no class may do without is checked here, since a class may override a hook of its base: a plan before the first
    step, and public images for validation, test and prediction.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Refuses a step without a plan.

        Raises:
            RuntimeError: A derived class has overridden `on_train_start`.
        """
        if not data_free(pl_module).begun:
            raise RuntimeError(
                f"on_train_start of {type(pl_module).__name__} must call that of its base class, which fixes the plan "
                "that the guarantee covers"
            )

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises `PartitionError` if public records may be the teacher's private ones, or classes differ."""
        require_public(trainer, data_free(pl_module).session.partitions)

    on_validation_start = on_predict_start = on_test_start

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs what was spent, and ends the fit before a step that the session would refuse."""
        module = data_free(pl_module)
        if module.is_logged:
            module.log_dict(module.spent(), prog_bar=True, on_step=True, on_epoch=False)
        stop_before(trainer, module.session, calls=module.next_calls)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs both ε with each validation accuracy, whatever `log_every_n_steps` leaves out."""
        module = data_free(pl_module)
        if module.session.is_open and not trainer.sanity_checking:
            module.log_dict(module.spent(), prog_bar=True, on_step=False, on_epoch=True)


def data_free(module: LightningModule) -> LearnsFromTeacher:
    """The module of a callback as a data-free method.

    Raises:
        TypeError: It is another kind of module.
    """
    if not isinstance(module, LearnsFromTeacher):
        raise TypeError(f"this callback is for data-free methods, not for {type(module).__name__}")
    return module


class ForwardExceptions(Callback):
    """Calls the module's `on_exception(exception)`: Lightning itself calls that hook only for callbacks and data."""

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        module: Any = pl_module
        module.on_exception(exception)
