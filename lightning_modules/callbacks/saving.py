"""What a run saves of its state: its configuration, its checkpoints, and what these record about it."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_modules.training.run import LAST, datamodule_of, run_folder
from privacy.identity import CheckpointError
from privacy.journal import write_atomically
from privacy.processes import failed_everywhere


class SaveConfig(SaveConfigCallback):
    """Writes `config.yaml` into the run's folder and passes the resolved values to every logger."""

    _class_names: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Settings to compare a resumed run with, see `cli.resuming`, and the names of the classes, to be published.

        The model's settings are saved with its weights.
        """
        compared = {name: self.values.get(name) for name in ("seed_everything", "data")}
        return {**compared, "class_names": [*self._class_names]}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """On rank zero only, when the first stage begins. Nothing here may communicate with the other ranks."""
        self._class_names = getattr(datamodule_of(trainer), "class_names", ())
        if self.already_saved or not trainer.is_global_zero:
            return
        self.already_saved = True
        if stage == "fit":
            # Without the checkpoint it resumed from: `fit --config config.yaml` runs the whole fit again.
            begun = self.config.clone()
            begun.ckpt_path = None
            write_atomically(run_folder(trainer) / "config.yaml", self._dumped(begun, "yaml"))
        pl_module._log_hyperparams = False  # Lightning would log the model's again, without their prefix
        for logger in trainer.loggers:
            logger.log_hyperparams(self.values)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The configuration as JSON values; an infinite number is the string "inf"."""
        return dict(json.loads(self._dumped(self.config, "json"), parse_constant={"Infinity": "inf"}.get))

    def _dumped(self, config: Any, form: str) -> str:
        # Validated when it was parsed.
        return str(self.parser.dump(config, skip_unset=False, skip_validation=True, format=form))


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint next to the previous one, syncs it, and renames it.

    Lightning's own class writes into the system's temporary folder and moves the file. If that folder is on another
    file system, moving copies over the existing checkpoint: a kill or a full disk meanwhile leaves neither the old nor
    the new one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Saves a checkpoint.

        Raises:
            OSError: It could not be written; the previous checkpoint remains.
        """
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(path, buffer.getbuffer(), mode=0o600)  # it may hold a private teacher


class LastCheckpoint(ModelCheckpoint):
    """Keeps `checkpoints/last.ckpt` in the run's folder up to date, whatever other checkpoints the user adds."""

    def __init__(self) -> None:
        super().__init__(filename=LAST.stem, enable_version_counter=False, save_on_exception=True)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Chooses the folder; Lightning takes that of process 0."""
        self.dirpath = str(run_folder(trainer) / LAST.parent)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f"Checkpoint directory {re.escape(self.dirpath)} exists")  # to go on
            super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads it in another folder too: there is no best checkpoint that would be lost."""
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves steps after the last validation, which Lightning leaves out if validations are between steps."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))


class SkipCheckpointOnLocalError(Callback):
    """Skips the checkpoint after an error in only some of the processes, since saving would wait for all of them.

    The others end when this process does. Releases stay charged.
    """

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Runs before the checkpoint callbacks, which come last."""
        # Lightning notifies all processes of a SIGTERM before any of them raises.
        if trainer.world_size == 1 or failed_everywhere(exception) or isinstance(exception, SIGTERMException):
            return
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback.save_on_exception = False


def read_checkpoint(path: str | Path, *, command: str) -> dict[str, Any]:
    """Reads a fit's checkpoint for a command.

    Raises:
        CheckpointError: It cannot be read, or is not a fit's checkpoint.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}): it is truncated, damaged or another kind "
            "of file. Give checkpoints/last.ckpt of a run's folder"
        ) from error
    needed = {"state_dict", "pytorch-lightning_version", "loops", *(["optimizer_states"] if command == "fit" else [])}
    missing = sorted(needed - content.keys() if isinstance(content, dict) else needed)
    if missing:
        raise CheckpointError(
            f"{path} is not a checkpoint that {command} can use: it lacks {', '.join(missing)}. Give "
            "checkpoints/last.ckpt of a run's folder; weights alone are never resumed"
        )
    return dict(content)


def hyperparameters(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the class (`_class_path`) and settings in a checkpoint of the command line; empty if it has none."""
    found = content.get("hyper_parameters")
    settings = dict(found) if isinstance(found, Mapping) else {}
    settings.pop("_instantiator", None)
    return settings


def noted_by_run(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the run's seed and data settings as recorded by `SaveConfig`; empty without a record."""
    noted = (content.get("callbacks") or {}).get("SaveConfig")
    return noted if isinstance(noted, Mapping) else {}
