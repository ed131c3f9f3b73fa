"""Progress as lines for log files."""

from __future__ import annotations

import time

from lightning import Callback, LightningModule, Trainer

#: Least number of seconds between two lines; the last epoch always has one.
_APART = 10.0


class ProgressLines(Callback):
    """Prints a line at the end of an epoch: epoch, seconds, and the progress bar's metrics."""

    def __init__(self) -> None:
        self._said = self._began = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now, last = time.monotonic(), trainer.current_epoch + 1 == trainer.max_epochs
        if trainer.is_global_zero and (last or now - self._said >= _APART):
            self._said = now
            values = ", ".join(f"{name} {float(value):.3g}" for name, value in trainer.progress_bar_metrics.items())
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            print(f"{epoch}, {now - self._began:.0f} s: {values}", flush=True)
