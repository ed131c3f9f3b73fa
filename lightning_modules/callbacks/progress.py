"""Progress as lines for log files."""

from __future__ import annotations

import math
import time
from typing import Any

from lightning import Callback, LightningModule, Trainer

from datamodules.progress import to_go

#: Least number of seconds between two lines; the last epoch always has one.
_APART = 10.0


class ProgressLines(Callback):
    """Prints a line at the end of an epoch: epoch, seconds, and the progress bar's metrics.

    The first line comes after ten seconds and says how long the fit will take; long epochs then have a line a minute.
    """

    def __init__(self) -> None:
        self._said = self._began = time.monotonic()
        self._before: int | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, per_epoch = time.monotonic(), trainer.num_training_batches
        done = trainer.current_epoch * per_epoch + batch_idx + 1
        if self._before is None:  # the first step has costs of its own
            self._began, self._before, self._said = now, int(done), now
            return
        apart = _APART if self._said == self._began else 60.0
        if trainer.is_global_zero and not trainer.is_last_batch and now - self._said >= apart:
            self._said = now
            total, left = (trainer.max_epochs or 0) * per_epoch, ""
            if 0 < total < math.inf:
                minutes = (total - done) * (now - self._began) / (done - self._before) / 60
                left = f" of {total:,}, {to_go(minutes)}"
            print(f"step {done:,}{left}", flush=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now, last = time.monotonic(), trainer.current_epoch + 1 == trainer.max_epochs
        if trainer.is_global_zero and (last or now - self._said >= _APART):
            self._said = now
            values = ", ".join(f"{name} {float(value):.3g}" for name, value in trainer.progress_bar_metrics.items())
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            print(f"{epoch}, {now - self._began:.0f} s: {values}", flush=True)
