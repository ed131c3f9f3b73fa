"""Progress as a terminal shows it, and as a log file keeps it."""

from __future__ import annotations

import sys
import time
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme

__all__ = ["ProgressLines", "ShortProgressBar", "progress"]

_SHORT = {
    "privacy/epsilon": "ε record",
    "privacy/epsilon_published": "ε published",
    "privacy/epsilon_label": "ε of labels",
    "test_split/accuracy": "test",
    "val/accuracy": "val",
    "ensemble/teachers_done": "teachers",
    "ensemble/mean_accuracy": "mean",
}
_LEFT_OUT = ("v_num", "privacy/queries")


def progress() -> ProgressBar:
    """A bar on a terminal; lines elsewhere, since a bar writes nothing there before the end."""
    return ShortProgressBar() if sys.stdout.isatty() else ProgressLines()


class ShortProgressBar(RichProgressBar):
    """Lightning's, with figures that fit beside it."""

    def __init__(self) -> None:
        super().__init__(theme=RichProgressBarTheme(metrics_format=".3g"))

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The logged figures by short names."""
        return _short(super().get_metrics(trainer, pl_module))


class ProgressLines(ProgressBar):
    """One line now and then: epoch, step, the logged figures.

    Args:
        seconds: Between two lines at least; the last epoch always has one.
    """

    def __init__(self, *, seconds: float = 20.0) -> None:
        super().__init__()
        self.seconds = seconds
        self._said = time.monotonic()
        self._enabled = True

    def disable(self) -> None:
        """For all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Inverse of `disable`."""
        self._enabled = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes a line if the last one is long enough ago."""
        epochs = trainer.max_epochs
        last = epochs is not None and trainer.current_epoch + 1 >= epochs
        if not self._enabled or not (last or time.monotonic() - self._said >= self.seconds):
            return
        self._said = time.monotonic()
        figures = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, (int, float)) else f"{name} {value}"
            for name, value in _short(self.get_metrics(trainer, pl_module)).items()
        )
        whole = "" if epochs in (None, -1) else f"/{epochs}"
        print(
            f"epoch {trainer.current_epoch + 1}{whole}, step {trainer.fit_loop.total_batch_idx + 1}: {figures}",
            flush=True,
        )


def _short(metrics: dict[str, Any]) -> dict[str, Any]:
    return {_SHORT.get(name, name): value for name, value in metrics.items() if name not in _LEFT_OUT}
