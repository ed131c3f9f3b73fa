"""Grids of synthetic images, to look at."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torchvision.utils import make_grid

from lightning_modules.callbacks.data_free import data_free, figures_folder
from lightning_modules.runtime.figures import image_grid, save_figure
from lightning_modules.runtime.runs import is_dev_run

__all__ = ["SyntheticImages", "log_image"]


class SyntheticImages(Callback):
    """A grid of synthetic images at each validation, as PNG and to the loggers that take images.

    Args:
        count: Images in a grid.
        every: Validations between two grids; the last state is always drawn when the fit ends.
    """

    def __init__(self, *, count: int = 64, every: int = 5) -> None:
        if count < 1 or every < 1:
            raise ValueError(f"count and every must be 1 or more, got {count} and {every}")
        self.count = count
        self.every = every
        self.seen = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws one where it is due."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self.seen += 1
        if self.seen % self.every == 0:
            self._draw(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the last one."""
        self._draw(trainer, pl_module)

    def _draw(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = data_free(pl_module)
        grid = getattr(module, "synthetic_grid", None)
        if grid is None or is_dev_run(trainer):
            return
        images = grid(self.count)  # in every process: layers that see all processes' images wait for all
        if not trainer.is_global_zero or not len(images):
            return  # none that may be drawn
        figure = image_grid(images, title=f"synthetic images after {module.steps_done} steps")
        path = save_figure(figure, figures_folder(trainer, module) / f"synthetic_{module.steps_done:06d}.png")
        log_image(trainer, images, path, step=module.steps_done)


def log_image(trainer: Trainer, images: torch.Tensor, path: Path, *, step: int) -> None:
    """Hands images to those loggers that can show them; for the others there is the PNG at `path`."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(
                "synthetic", make_grid(images.float().cpu(), normalize=True, scale_each=True), step
            )
        elif isinstance(logger, WandbLogger):
            logger.log_image(key="synthetic", images=[str(path)])
