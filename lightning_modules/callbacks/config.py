"""Saves the resolved configuration of a run and passes it to every logger."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import yaml
from lightning import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from lightning_modules.runtime.runs import callbacks_of, run_folder
from privacy.journal import write_atomically


class SaveConfig(SaveConfigCallback):
    """Writes `config.yaml` into the run's folder and passes the resolved values to every logger."""

    def state_dict(self) -> dict[str, Any]:
        """Settings to compare a resumed run with, see `cli.resuming`; the model's are saved with its weights."""
        return {name: self.values.get(name) for name in ("seed_everything", "data")}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """On rank zero only, when the first stage begins. Nothing here may communicate with the other ranks."""
        if self.already_saved or not trainer.is_global_zero:
            return
        self.already_saved = True
        if stage == "fit":
            # Without the checkpoint it resumed from: `fit --config config.yaml` runs the whole fit again.
            begun = {**json.loads(self._text), "ckpt_path": None}
            write_atomically(
                run_folder(trainer) / "config.yaml", yaml.safe_dump(begun, sort_keys=False, allow_unicode=True)
            )
        pl_module._log_hyperparams = False  # Lightning would log the model's again, without their prefix
        for logger in trainer.loggers:
            logger.log_hyperparams(self.values)

    @cached_property
    def _text(self) -> str:
        # Validated when it was parsed.
        text: str = self.parser.dump(self.config, skip_unset=False, skip_validation=True, format="json")
        return text

    @cached_property
    def values(self) -> dict[str, Any]:
        """The configuration as JSON values; an infinite number is the string "inf"."""
        loaded: dict[str, Any] = json.loads(self._text, parse_constant={"Infinity": "inf"}.get)
        return loaded


def resolved_config(trainer: Trainer) -> dict[str, Any] | None:
    """Return the run's configuration as plain values; None if it was not started from the command line."""
    found = next((callback for callback in callbacks_of(trainer) if isinstance(callback, SaveConfig)), None)
    return None if found is None else found.values
