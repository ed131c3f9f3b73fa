"""Curves of accuracy and both ε over a fit, and grids of synthetic images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torchvision.utils import make_grid

from lightning_modules.callbacks.privacy import data_free
from lightning_modules.evaluation import validation_metric
from lightning_modules.runtime.figures import image_grid, save_figure
from lightning_modules.runtime.publication import private_folder, public_folder
from lightning_modules.runtime.runs import is_dev_run


class Curves(Callback):
    """Accuracy and both ε over steps, for the result record.

    Attributes:
        history: One point per validation: `steps`, `accuracy`, `epsilon`, `epsilon_published`, `queries`.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        accuracy = trainer.callback_metrics.get(validation_metric(trainer))
        if trainer.sanity_checking or trainer.state.fn != "fit" or accuracy is None:
            return
        module = data_free(pl_module)
        account = module.session.account
        self.history.append(
            {
                "steps": module.steps_done,
                "accuracy": float(accuracy),
                "epsilon": account.epsilon(),
                "epsilon_published": account.epsilon_published(),
                "queries": account.queries(),
            }
        )

    def state_dict(self) -> dict[str, Any]:
        """The points, so that a resumed run draws one curve."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [dict(point) for point in state_dict["history"]]


class SyntheticImages(Callback):
    """Draws a grid of synthetic images as PNG and for loggers that take images.

    A generator's images are drawn at each validation; others do not change and are drawn when the fit ends.
    """

    def __init__(self) -> None:
        self._drawn = -1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit" and data_free(pl_module).generator is not None:
            self._draw(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if data_free(pl_module).steps_done != self._drawn:
            self._draw(trainer, pl_module)

    def _draw(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_dev_run(trainer):
            return
        module = data_free(pl_module)
        self._drawn = module.steps_done
        # In every process: layers that synchronise over processes wait for all.
        images = module.synthetic_grid()
        if not trainer.is_global_zero or not len(images):
            return  # no images may be shown
        figure = image_grid(images, title=f"synthetic images after {module.steps_done} steps")
        # Next to the guarantee if it covers the images, otherwise in the private folder.
        bounded = math.isfinite(module.session.covered_epsilon())
        folder = public_folder(trainer) if bounded else private_folder(trainer)
        path = save_figure(figure, folder / "figures" / f"synthetic_{module.steps_done:06d}.png")
        if bounded:
            log_image(trainer, images, path, step=module.steps_done)


def log_image(trainer: Trainer, images: torch.Tensor, path: Path, *, step: int) -> None:
    """Logs images to loggers that can show them; the PNG at `path` is for all others."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(
                "synthetic", make_grid(images.float().cpu(), normalize=True, scale_each=True), step
            )
        elif isinstance(logger, WandbLogger):
            logger.log_image(key="synthetic", images=[str(path)], step=step)
