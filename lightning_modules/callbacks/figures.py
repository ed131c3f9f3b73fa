"""Grids of synthetic images, and how a figure is saved."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from lightning import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torchvision.utils import make_grid

from privacy.journal import write_atomically

if "matplotlib.pyplot" not in sys.modules:  # a notebook's own backend stays
    matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from lightning_modules.training.run import is_dev_run, run_folder


class SyntheticImages(Callback):
    """Draws a grid of synthetic images as PNG and for loggers that take images, and says how informative they are.

    A generator's images are drawn at each validation; others do not change and are drawn when the fit ends.
    """

    def __init__(self) -> None:
        self._drawn = -1

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if pl_module.images.generator is not None and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._draw(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See `ImageSource.tell`; it says so once."""
        pl_module.images.tell(pl_module.student, steps=pl_module.student_steps, draw=pl_module.synthetic_grid)

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        if pl_module.steps_done != self._drawn:
            self._draw(trainer, pl_module)

    def _draw(self, trainer: Trainer, pl_module: Any) -> None:
        if is_dev_run(trainer):
            return
        self._drawn = pl_module.steps_done
        # In every process: layers that synchronise over processes wait for all.
        images = pl_module.synthetic_grid()
        if not trainer.is_global_zero or not len(images):
            return  # no images may be shown
        # Each is scaled to its own range, since generators may exceed [-1, 1].
        pixels = images.detach().float().cpu()
        grid = make_grid(pixels, nrow=max(1, round(math.sqrt(len(images)))), normalize=True, scale_each=True)
        figure = image_grid(grid, title=f"synthetic images after {pl_module.steps_done} steps")
        # Next to the guarantee if it covers the images, otherwise in the private folder.
        bounded = math.isfinite(pl_module.session.account.epsilon(counts=pl_module.session.covering()))
        folder = run_folder(trainer) / ("public" if bounded else "private")
        path = save_figure(figure, folder / "figures" / f"synthetic_{pl_module.steps_done:06d}.png")
        if bounded:
            log_image(trainer, grid, path, step=pl_module.steps_done)


def log_image(trainer: Trainer, grid: torch.Tensor, path: Path, *, step: int) -> None:
    """Logs an image (3, H, W) to loggers that can show it; the PNG at `path` is for all others."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image("synthetic", grid, step)
        elif isinstance(logger, WandbLogger):
            logger.log_image(key="synthetic", images=[str(path)], step=step)


def image_grid(grid: torch.Tensor, *, title: str) -> Figure:
    """Draws an image (3, H, W)."""
    figure, axes = plt.subplots(figsize=(4.5, 4.7))
    axes.imshow(grid.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.axis("off")
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a PNG atomically and closes the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    return write_atomically(path, buffer.getvalue())
