"""One folder for a run's name, whichever logger it has."""

from __future__ import annotations

from collections.abc import Iterable

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

__all__ = ["name_runs"]

_LIGHTNING = "lightning_logs"
"""What Lightning calls a run, and W&B's project, that nobody named."""


def name_runs(loggers: Iterable[Logger], *, name: str) -> None:
    """Names runs that were given no name, before their loggers are first used.

    Args:
        loggers: Loggers of any kind.
        name: Of method and data, as the default logger's folder has it.
    """
    for logger in loggers:
        if isinstance(logger, (CSVLogger, TensorBoardLogger)) and logger._name == _LIGHTNING:
            logger._name = name
        elif isinstance(logger, WandbLogger) and logger._project == _LIGHTNING:
            logger._project = logger._wandb_init["project"] = name
