"""Writes a network's predictions for the images given to `predict` as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.training.processes import processes_of
from lightning_modules.training.run import datamodule_of, folder_of_checkpoint, run_folder
from privacy.journal import write_atomically

_UNDEFINED = LightningDataModule.predict_dataloader
_PRIVATE = (
    "PRIVATE: these are responses of a teacher that nothing bounds. No ledger counts them, and they must neither be "
    "published nor be used to choose anything"
)


class PredictionWriter(BasePredictionWriter):
    """Writes `predictions.csv`: id or position, file, class, its name, and the probability of each class.

    The file is written to the checkpoint's run folder. Predictions of a private teacher, which nothing bounds, go into
    `private/` there.
    """

    def __init__(self) -> None:
        super().__init__(write_interval="batch")
        self._rows: list[tuple[int, str, list[float]]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets data without a `predict_dataloader` use their test batches."""
        super().setup(trainer, pl_module, stage)
        data = datamodule_of(trainer)
        # Lightning checks whether the method is overridden.
        if stage == "predict" and getattr(type(data), "predict_dataloader", None) is _UNDEFINED:
            assert data is not None
            data.predict_dataloader = data.test_dataloader

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = []

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Keeps the probabilities of one batch, shape (B, c)."""
        if dataloader_idx:
            raise ValueError("predict writes one table, and the data have more than one loader: predict each alone")
        rows = prediction.detach().double().cpu().tolist()
        positions = list(batch_indices) if batch_indices else range(len(self._rows), len(self._rows) + len(rows))
        loaders = trainer.predict_dataloaders
        records = getattr(loaders[0] if isinstance(loaders, (list, tuple)) else loaders, "dataset", None)
        ids, names = getattr(records, "ids", None), getattr(records, "names", None)
        numbers = positions if ids is None else ids[torch.as_tensor(positions)].tolist()
        files = [names[position] if names else "" for position in positions]
        self._rows += zip(map(int, numbers), files, rows, strict=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows = [row for given in processes_of(trainer).gather(self._rows) for row in given]
        self._rows = []
        if not trainer.is_global_zero:
            return
        # Predictions of students, and of teachers by DP-SGD, are covered by a guarantee.
        epsilon = getattr(pl_module, "epsilon", None) or (lambda: math.inf)
        private = hasattr(pl_module, "own_training") and not math.isfinite(float(epsilon()))
        given = trainer.ckpt_path
        folder = (given and folder_of_checkpoint(Path(given))) or run_folder(trainer)
        path = folder / ("private" if private else "") / "predictions.csv"
        write_atomically(path, table(sorted(rows), _class_names(trainer, rows)))
        rank_zero_info(f"{len(rows):,} predictions: {path}" + (f"\n{_PRIVATE}." if private else ""))


def _class_names(trainer: Trainer, rows: Sequence[tuple[int, str, list[float]]]) -> list[str]:
    data = datamodule_of(trainer)
    names = getattr(data, "class_names", None) or getattr(getattr(data, "dataset", None), "class_names", None)
    count = len(rows[0][2]) if rows else len(names or ())
    return list(names) if names is not None and len(names) == count else [str(label) for label in range(count)]


def table(rows: Sequence[tuple[int, str, list[float]]], class_names: Sequence[str]) -> str:
    """Format rows of an id or position, a file name (may be empty) and probabilities (c) as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "file", "class", "class_name", *(f"p({name})" for name in class_names)])
    for number, file, probabilities in rows:
        label = max(range(len(probabilities)), key=probabilities.__getitem__)
        writer.writerow([number, file, label, class_names[label], *(f"{value:.6g}" for value in probabilities)])
    return text.getvalue()
