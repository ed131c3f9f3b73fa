"""Hyperparameters that a checkpoint can hold without pickling code."""

from __future__ import annotations

from typing import Any

from lightning import LightningModule

__all__ = ["keep_plain_hyperparameters"]


def keep_plain_hyperparameters(module: LightningModule) -> None:
    """Drops from `module.hparams` what `torch.load(weights_only=True)` would refuse: networks, factories, annotators.

    Under the command line these are saved as `class_path` and `init_args`, which are plain and stay. In a script that
    passes
    objects, `load_from_checkpoint` needs the same objects again.
    """
    for name in [name for name, value in module.hparams.items() if not _plain(value)]:
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
