"""Names and groups W&B runs by method and data set."""

from __future__ import annotations

import os
from collections.abc import Iterable

from lightning import LightningModule
from lightning.pytorch.loggers import Logger, WandbLogger


def describe_runs(loggers: Iterable[Logger], *, model: LightningModule, dataset: str) -> None:
    """Sets missing names and groups of W&B runs, before loggers are first used.

    Console output is not uploaded unless requested: findings about a teacher are only for its owner.
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            # Lightning passes these to `wandb.init` when the logger is first used; groups cannot be changed afterwards.
            settings = logger._wandb_init
            # W&B's own process keeps the working directory that it was started in.
            settings["dir"] = os.path.abspath(settings.get("dir") or ".")
            own = settings.get("settings")
            if own is None or isinstance(own, dict):
                settings["settings"] = {"console": "off", **(own or {})}
            named = [str(getattr(model, "paper", "")), type(model).__name__, dataset]
            for name in ("name", "group"):
                settings[name] = settings.get(name) or "-".join(dict.fromkeys(filter(None, named)))
            logger._name = settings["name"]
