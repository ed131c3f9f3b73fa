"""Progress as a terminal shows it, and as a log file keeps it."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme

from lightning_modules.private_run import steps_of_fit

_SHORT = {
    "privacy/epsilon": "ε record",
    "privacy/epsilon_person": "ε person",
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
    """A line every few seconds: epoch, step, steps per second, the time left, the logged figures.

    Args:
        seconds: Between two lines at least; the last epoch always has one.
    """

    def __init__(self, *, seconds: float = 10.0) -> None:
        super().__init__()
        self.seconds = seconds
        self._said = self._began = time.monotonic()
        self._steps_before = 0
        self._enabled = True

    def disable(self) -> None:
        """For all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Inverse of `disable`."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to count: the rate is of this fit's own steps."""
        self._said = self._began = time.monotonic()
        self._steps_before = -1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes a line if the last one is long enough ago, without figures: an epoch's ε is behind the step."""
        if self._steps_before < 0:  # what is made once, such as features and answers, is no step's time
            self._began, self._steps_before = time.monotonic(), trainer.fit_loop.total_batch_idx + 1
            return
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._say(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes a line with the figures if the last one is long enough ago, and at the end of the last epoch."""
        epochs = trainer.max_epochs
        figures = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, (int, float)) else f"{name} {value}"
            for name, value in _short(self.get_metrics(trainer, pl_module)).items()
        )
        self._say(trainer, f": {figures}", due=epochs is not None and trainer.current_epoch + 1 >= epochs)

    def _say(self, trainer: Trainer, figures: str = "", *, due: bool = False) -> None:
        now = time.monotonic()
        if not self._enabled or not (due or now - self._said >= self.seconds):
            return
        self._said = now
        epochs, steps, step = trainer.max_epochs, steps_of_fit(trainer), trainer.fit_loop.total_batch_idx + 1
        rate = (step - self._steps_before) / max(now - self._began, 1e-9)
        left = "" if steps is None or not rate > 0 else f", {timedelta(seconds=round((steps - step) / rate))} left"
        print(
            f"epoch {trainer.current_epoch + 1}{'' if epochs in (None, -1) else f'/{epochs}'}, "
            f"step {step}{'' if steps is None else f'/{steps}'}, {rate:.3g} steps/s{left}{figures}",
            flush=True,
        )


def _short(metrics: dict[str, Any]) -> dict[str, Any]:
    return {_SHORT.get(name, name): value for name, value in metrics.items() if name not in _LEFT_OUT}
