"""Accuracy and both epsilons over the course of a fit."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lightning_modules.callbacks.data_free import data_free, figures_folder
from lightning_modules.evaluation import KEPT_APART, validation_metric
from lightning_modules.runtime.figures import run_curves, save_figure
from lightning_modules.runtime.runs import datamodule_of, is_dev_run

__all__ = ["Curves"]


class Curves(Callback):
    """Accuracy and both ε over steps: `curves.png` in the run's folder, and the points as `history`.

    Attributes:
        history: One point per validation: `steps`, `accuracy`, `epsilon`, `epsilon_published`, `queries`.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes a point."""
        accuracy = trainer.callback_metrics.get(validation_metric(trainer))
        if trainer.sanity_checking or trainer.state.fn != "fit" or accuracy is None:
            return
        module = data_free(pl_module)
        account = module.annotator.account
        self.history.append(
            {
                "steps": module.steps_done,
                "accuracy": float(accuracy),
                "epsilon": account.epsilon(),
                "epsilon_published": account.epsilon_published(),
                "queries": account.queries(),
            }
        )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the figure."""
        if trainer.is_global_zero and self.history and not is_dev_run(trainer):
            title = f"{type(pl_module).__name__} on {getattr(datamodule_of(trainer), 'name', 'data')}"
            of = "kept apart" if validation_metric(trainer) == KEPT_APART else "test"
            figure = run_curves(self.history, title=title, of=of)
            save_figure(figure, figures_folder(trainer, data_free(pl_module)) / "curves.png")

    def state_dict(self) -> dict[str, Any]:
        """The points, so that a resumed run draws one curve."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.history = [dict(point) for point in state_dict["history"]]
