"""Metrics of a run that goes on in the folder where it began."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

__all__ = ["ContinuedCSVLogger"]


class ContinuedCSVLogger(CSVLogger):
    """A CSV logger that keeps the rows it finds, where Lightning's deletes the file."""

    @property
    def experiment(self) -> Any:
        """The writer, which starts with the rows that are there."""
        if self._experiment is None:
            path = Path(self.log_dir) / ExperimentWriter.NAME_METRICS_FILE
            rows: list[Any] = []  # text, as it was written
            if path.is_file():
                with path.open(encoding="utf-8", newline="") as file:
                    rows = list(csv.DictReader(file))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*log files in this directory will be deleted")
                writer = super().experiment
            if isinstance(writer, ExperimentWriter) and rows:
                writer.metrics[:0] = rows
                writer.save()
        return super().experiment
