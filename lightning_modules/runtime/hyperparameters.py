"""Hyperparameters that a checkpoint can hold without pickling code."""

from __future__ import annotations

import inspect
from typing import Any

from lightning import LightningModule

__all__ = ["keep_plain_hyperparameters"]


def keep_plain_hyperparameters(module: LightningModule) -> None:
    """Drops from `module.hparams` what `torch.load(weights_only=True)` would refuse: networks, factories, annotators.

    Under the command line these are saved as `class_path` and `init_args`, which are plain and stay. In a script that
    passes objects, `load_from_checkpoint` needs the same objects again.

    Drops also what the class does not take: the command line offers every class all that the data tell, and a
    checkpoint that remembered more than its class accepts could not be resumed.
    """
    taken = {*inspect.signature(type(module).__init__).parameters, "_class_path", "_instantiator"}
    for name in [name for name, value in module.hparams.items() if not _plain(value) or name not in taken]:
        del module.hparams[name]
    initial = getattr(module, "_hparams_initial", None)
    if initial is not None:
        for name in [name for name in initial if name not in module.hparams]:
            del initial[name]


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)
