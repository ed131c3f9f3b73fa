"""Separates a run's files: `public/` holds what the guarantee covers, `private/` what no guarantee covers.

Everything else in a run's folder (configuration, checkpoints, curves, records) is working state and must stay there.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import nn

from lightning_modules.runtime.runs import is_dev_run, run_folder
from privacy.guarantee import Guarantee
from privacy.journal import write_atomically


def public_folder(trainer: Trainer) -> Path:
    """Folder of the guarantee and of what it covers."""
    return run_folder(trainer) / "public"


def private_folder(trainer: Trainer) -> Path:
    """Folder of figures from non-private accesses, for which nothing was charged."""
    return run_folder(trainer) / "private"


def clear(trainer: Trainer, *, resumed: str | None = None) -> None:
    """Removes files of an earlier fit in the same folder, unless they belong to the run to be `resumed`.

    Process 0 does so, and no fit that writes nothing.
    """
    if not trainer.is_global_zero or is_dev_run(trainer):
        return
    try:
        found = json.loads((public_folder(trainer) / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]["run"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if resumed and found == resumed:
        return
    for folder in (public_folder(trainer), private_folder(trainer), *run_folder(trainer).glob("clients/*")):
        for pattern in ("guarantee.*", "*.pt", "figures/*.png", "attack/attack.*"):
            for file in folder.glob(pattern):
                file.unlink(missing_ok=True)


def publish(trainer: Trainer, guarantee: Guarantee, networks: Mapping[str, nn.Module]) -> Path:
    """Writes the guarantee and, next to it, the plain weights that it covers: none if ε is infinite.

    Returns:
        Path of the guarantee's page.
    """
    _, page = guarantee.write(folder := public_folder(trainer))
    covered = {} if math.isinf(guarantee.epsilon) else networks
    if not covered:
        # These were drawn while a bound still held.
        for picture in (folder / "figures").glob("*.png"):
            kept = folder.parent / "private" / "figures" / picture.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.replace(picture, kept)
    for stale in folder.glob("*.pt"):
        if stale.stem not in covered:
            stale.unlink()
    for name, network in covered.items():
        state = {key: value.detach().cpu().clone() for key, value in network.state_dict().items()}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(folder / f"{name}.pt", buffer.getvalue())
    return page


class ForwardExceptions(Callback):
    """Calls the module's `on_exception(exception)`: Lightning itself calls that hook only for callbacks and data."""

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        module: Any = pl_module
        module.on_exception(exception)
