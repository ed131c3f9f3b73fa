"""What W&B shows of a run: name and group by method and data set; and one run for each fit of a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from lightning import LightningModule
from lightning.pytorch.loggers import Logger, WandbLogger


def describe_runs(loggers: Iterable[Logger], *, model: LightningModule, dataset: str) -> None:
    """Names and groups those W&B runs that were given none. It must come before their first use.

    What is said on the console stays there unless requested: what is found out of a teacher is only for its owner.
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            # Lightning hands these to `wandb.init` when the logger is first used; groups cannot be changed after that.
            settings = logger._wandb_init
            # W&B's own process keeps the working folder in which it was started.
            settings["dir"] = os.path.abspath(settings.get("dir") or ".")
            own = settings.get("settings")
            if own is None or isinstance(own, dict):
                settings["settings"] = {"console": "off", **(own or {})}
            named = [str(getattr(model, "paper", "")), type(model).__name__, dataset]
            for name in ("name", "group"):
                settings[name] = settings.get(name) or "-".join(dict.fromkeys(filter(None, named)))
            logger._name = settings["name"]


def end_wandb_run() -> None:
    """Ends the W&B run of this process, if there is one: Lightning would let the next fit continue it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish()
