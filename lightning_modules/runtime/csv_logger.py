"""Metrics of a run: in a folder that is its own, whole whenever the process ends, and going on where it began."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from lightning_modules.runtime.run_folder import claim_folder, first_process
from privacy.files import write_atomically

__all__ = ["ContinuedCSVLogger", "RunCSVLogger"]


class RunCSVLogger(CSVLogger):
    """A CSV logger whose numbered folder no other run has, where Lightning's gives two that start at once the same one.

    What an earlier run has left in a folder of a given name stands until the first rows are written.

    Attributes:
        made: Folders that were made for it, innermost first.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.made: list[Path] = []

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """What writes the files."""
        if self._experiment is None:
            self._experiment = self._writer()
        return self._experiment

    def _writer(self) -> ExperimentWriter:
        return _Writer(self.log_dir, keep=False)

    def _get_next_version(self) -> int:
        number = super()._get_next_version()
        if not first_process():  # the other processes of a fit are told the folder
            return number
        while (made := claim_folder(Path(self.root_dir) / f"version_{number}")) is None:
            number += 1
        self.made = made
        return number


class ContinuedCSVLogger(RunCSVLogger):
    """A CSV logger that keeps the rows it finds, where Lightning's deletes the file.

    Args:
        before_step: Rows of this step and later ones are of steps that are done again, and make room for these.
    """

    def __init__(self, *arguments: Any, before_step: int | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.before_step = before_step

    def _writer(self) -> ExperimentWriter:
        return _Writer(self.log_dir, keep=True, before_step=self.before_step)


class _Writer(ExperimentWriter):
    def __init__(self, log_dir: str, *, keep: bool, before_step: int | None = None) -> None:
        super().__init__(log_dir=log_dir)
        self._stale = not keep
        if keep and (rows := self._read()):
            self.metrics_keys = list(rows[0])
            kept = [row for row in rows if before_step is None or int(row["step"]) < before_step]
            self._write(kept)

    def save(self) -> None:
        """Appends what was logged since."""
        if self._stale and self.metrics:
            Path(self.metrics_file_path).unlink(missing_ok=True)
            self._stale = False
        super().save()

    def _check_log_dir_exists(self) -> None:
        """Deletes nothing, where Lightning's does."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self._write(self._read(), fieldnames)

    def _read(self) -> list[dict[str, str]]:
        """The rows as they were written, without one that a kill cut short."""
        path = Path(self.metrics_file_path)
        if not path.is_file():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        return [dict(row) for row in csv.DictReader(whole) if row.get("step") and None not in row.values()]

    def _write(self, rows: Sequence[dict[str, str]], fieldnames: Sequence[str] | None = None) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=fieldnames or self.metrics_keys)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.metrics_file_path, text.getvalue())
