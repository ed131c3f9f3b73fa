"""What W&B shows of a run: name, group and tags by method, data set and ε; and one run for each fit of a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from lightning import LightningModule
from lightning.pytorch.loggers import Logger, WandbLogger

from privacy.formatting import round_up

LONGEST = 64
"""W&B refuses longer tags."""


def describe_runs(loggers: Iterable[Logger], *, model: LightningModule, dataset: str) -> None:
    """Names, groups and tags those W&B runs that were given none. It must come before their first use.

    What is said on the console stays there unless requested: a teacher's own accuracy, and what is found out when
    it is loaded, are only for its owner.
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
            for name, value in _description(model, dataset).items():
                if not settings.get(name):
                    settings[name] = value
            logger._name = settings["name"]


def name_by_epsilon(loggers: Iterable[Logger], epsilon: float) -> None:
    """Adds the ε that was reached to the names of those W&B runs that were given none."""
    for logger in loggers:
        if isinstance(logger, WandbLogger) and logger._name == logger._wandb_init.get("group"):
            logger.experiment.name = f"{logger._name}-eps{round_up(epsilon, digits=3)}"


def end_wandb_run() -> None:
    """Ends the W&B run of this process, if there is one: Lightning would let the next fit continue it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish()


def _description(model: LightningModule, dataset: str) -> dict[str, Any]:
    paper, method = str(getattr(model, "paper", "")), type(model).__name__
    annotator = getattr(model, "annotator", None)
    epsilon = getattr(getattr(annotator, "budget", model), "target_epsilon", None)
    budget = "none" if epsilon is None else f"{epsilon:g}"
    tags = [f"method:{method}", f"dataset:{dataset}", f"target_epsilon:{budget}"]
    if epsilon is not None and annotator is not None:
        tags.append(f"accounting:{annotator.budget.accounting}")
    if paper:
        tags.insert(0, f"paper:{paper}")
    named = "-".join(dict.fromkeys(filter(None, [paper, method, dataset])))
    return {"name": named, "group": named, "tags": [tag[:LONGEST] for tag in tags]}
