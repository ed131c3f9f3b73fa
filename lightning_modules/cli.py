"""The command line: `LightningCLI fit --config sweeps/dpdfd_mnist.yaml`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

# Importing makes the short class names of the configuration files known.
import privacy.annotators  # noqa: F401
from datamodules import MissingDataError
from lightning_modules.callbacks.config import SaveConfig
from lightning_modules.callbacks.failures import NoLonelyCheckpoint
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.commands.audit import AuditError, audit
from lightning_modules.commands.calibrate import calibrate
from lightning_modules.commands.ledger import ledger
from lightning_modules.commands.priors import priors
from lightning_modules.runtime.arguments import prepare_arguments
from lightning_modules.runtime.csv_logger import ContinuedCSVLogger
from lightning_modules.runtime.processes import (
    ProcessesError,
    allow_tensor_cores,
    check_kind_of_strategy,
    check_launcher,
    check_strategy,
)
from lightning_modules.runtime.renamed import upgrade_settings
from lightning_modules.runtime.resuming import read_hyperparameters, refuse_differences
from lightning_modules.runtime.wandb_runs import describe_runs
from lightning_modules.teachers.own_training import CheckpointError
from lightning_modules.teachers.private_teacher import TeacherError
from privacy.account import BudgetExceeded
from privacy.ledger import LedgerError
from privacy.neighbours import IncompatibleNeighbours
from privacy.processes import failed_everywhere
from sweeps.runner.documents import DocumentError, render
from sweeps.runner.engines import EngineError
from sweeps.runner.pipeline import PipelineError, pipeline
from sweeps.runner.sweep import SweepError, sweep
from sweeps.runner.tables.commands import tables
from sweeps.runner.tables.spec import SpecError
from sweeps.runner.work import worker

__all__ = ["TranscriptionCLI", "main", "run"]

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "pipeline": lambda args: pipeline(args, run=run),
    "render": render,
    "calibrate": lambda args: calibrate(args, build=lambda rest: _cli(rest, run=False)),
    "tables": lambda args: tables(args, run=run),
    "sweep": lambda args: sweep(args, run=run),
    "priors": priors,
    "ledger": ledger,
    "audit": lambda args: audit(args, run=run),
    "work": lambda args: worker(args, run=run),
}
"""Commands beside LightningCLI's own, each with a parser of its own since they need no model."""

EXPECTED = (
    TeacherError,
    MissingDataError,
    BudgetExceeded,
    LedgerError,
    PipelineError,
    DocumentError,
    SpecError,
    SweepError,
    CheckpointError,
    IncompatibleNeighbours,
    AuditError,
    EngineError,
    ProcessesError,
)
"""Errors that say all there is to say: on the command line they need no traceback."""

LINKED = ("num_classes", "image_shape", "batch_size")
"""What the data tell the model."""


class TranscriptionCLI(LightningCLI):
    """LightningCLI with short class names, links from data to model, and a folder of its own for every run."""

    def __init__(self, *, args: Sequence[str], **settings: Any) -> None:
        self._asked_for = args[0] if args else None
        super().__init__(args=list(args), **settings)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The one that the arguments begin with: a parser for each takes longer than parsing. Else all."""
        every = LightningCLI.subcommands()
        return {name: skip for name, skip in every.items() if name == self._asked_for} or every

    def _dump_config(self) -> None:
        """The configuration as plain values, for what a checkpoint says of itself.

        The same as Lightning's, which validates once more what was just parsed and reads YAML without libyaml: half of
        the time between a command and its first step.
        """
        if hasattr(self, "config_dump"):
            return
        text = self.parser.dump(
            self.config, skip_link_targets=False, skip_unset=False, skip_validation=True, format="yaml"
        )
        values = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self.config_dump = values[self.config.subcommand] if "subcommand" in self.config else values

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links what the data know to the model that needs it."""
        for name in LINKED:
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Compares a checkpoint with the configuration, where Lightning would take its settings over the user's.

        Raises:
            CheckpointError: Another class, or settings that a run cannot be resumed with.
        """
        command = self.config.get("subcommand")
        path = self.config[command].get("ckpt_path") if command else None
        if not path or not Path(path).is_file():
            return
        before = read_hyperparameters(path)
        model = self.config[command].model
        if not before or "_class_path" not in before:
            return
        before = upgrade_settings(before["_class_path"], before, where=str(path))
        if command == "fit":
            applied = refuse_differences(
                before,
                _as_dict(model.get("init_args") or {}),
                class_before=before["_class_path"],
                class_now=model.class_path,
                checkpoint=str(path),
            )
            if applied:
                rank_zero_info(f"Changed by resuming, and applied from here on: {', '.join(applied)}.")
            return
        refuse_differences({}, {}, class_before=before["_class_path"], class_now=model.class_path, checkpoint=str(path))
        # What is measured is what was trained: its architecture is in the checkpoint.
        settings = {"class_path": before.pop("_class_path"), "dict_kwargs": before}
        self.config = self.parser.parse_object({command: {"model": settings}}, self.config)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Fills in the logger, the checkpoint and the result record where the configuration leaves them open."""
        settings = self._get(self.config_init, "trainer")
        if settings.logger is None:
            kwargs["logger"] = self._default_logger(settings.default_root_dir)
        else:
            loggers = settings.logger if isinstance(settings.logger, (list, tuple)) else [settings.logger]
            describe_runs(loggers, model=self.model, dataset=self._dataset)
        if self.subcommand == "fit" and not settings.fast_dev_run:
            given = settings.callbacks or []
            callbacks = list(given) if isinstance(given, (list, tuple)) else [given]
            present = {type(callback) for callback in callbacks}
            if ModelCheckpoint not in present and settings.enable_checkpointing is not False:
                callbacks.append(ModelCheckpoint(filename="last", enable_version_counter=False, save_on_exception=True))
            if ResultRecord not in present:
                callbacks.append(ResultRecord())
            kwargs["callbacks"] = [*callbacks, NoLonelyCheckpoint()]
        # Here as well as in the modules: before processes are started and data are read.
        check_kind_of_strategy(settings.strategy)
        if settings.devices == settings.strategy == "auto":
            kwargs["devices"] = 1  # more than one is a choice: a batch has to be one that they can share
        trainer = super().instantiate_trainer(**kwargs)
        check_launcher(trainer)
        allow_tensor_cores(trainer.strategy.root_device)
        check_strategy(trainer, averages_itself=not self.model.automatic_optimization)
        return trainer

    def _default_logger(self, folder: str | None) -> CSVLogger:
        if folder is not None:
            # Lightning's own would delete the curves of the run that is resumed or tested.
            fresh = self.subcommand == "fit" and not self.config_init[self.subcommand].get("ckpt_path")
            return (CSVLogger if fresh else ContinuedCSVLogger)(save_dir=folder, name="", version="")
        return CSVLogger(save_dir="runs", name=f"{type(self.model).__name__}_{self._dataset}".lower())

    @property
    def _dataset(self) -> str:
        return str(getattr(self.datamodule, "name", type(self.datamodule).__name__))


def _as_dict(settings: Any) -> dict[str, Any]:
    return settings.as_dict() if hasattr(settings, "as_dict") else dict(settings)


def run(args: Sequence[str]) -> TranscriptionCLI | None:
    """Runs one command in this process and lets its errors through."""
    command = next((argument for argument in args if not argument.startswith("-")), None)
    if command in COMMANDS:
        COMMANDS[command](list(args)[1:])
        return None
    return _cli(args)


def _cli(args: Sequence[str], *, run: bool = True) -> TranscriptionCLI:
    return TranscriptionCLI(
        model_class=LightningModule,
        datamodule_class=LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=SaveConfig,
        seed_everything_default=0,
        # Every method makes its own optimizers: `--optimizer` would replace them by a single one.
        auto_configure_optimizers=False,
        parser_kwargs={
            "description": "Also: `pipeline FILE` runs fits in order, `calibrate --config FILE` shows what they would "
            "cost, `render FILE` writes results into documents, `tables` runs and renders the papers' tables, "
            "`sweep FILE` follows W&B's sweep files without a server, `priors` draws what each image prior draws, "
            "`ledger` shows what was spent on private data, `audit` trains with and without a planted record and "
            "bounds epsilon from below; each has its own --help."
        },
        args=prepare_arguments(args),
        run=run,
    )


def main(args: Sequence[str] | None = None) -> TranscriptionCLI | None:
    """Entry point of the console scripts.

    Args:
        args: Command-line arguments; None takes those of the process, and then ends it with a message in place of a
            traceback where an error is an expected one.
    """
    if args is not None:
        return run(args)
    # What the libraries say to whoever builds on them is nothing for whoever types a command.
    for message in ("LightningCLI.s args", ".*LeafSpec", ".*does not have many workers", "The number of training"):
        warnings.filterwarnings("ignore", message=message)
    try:
        run(sys.argv[1:])
    except EXPECTED as error:
        # One of several processes speaks for all.
        one_speaks = failed_everywhere(error) and rank_zero_only.rank  # type: ignore[attr-defined]
        sys.exit(1 if one_speaks else f"error: {error}")
    return None
