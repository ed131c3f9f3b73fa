"""The command line: `LightningCLI fit --config sweeps/dpdfd_mnist.yaml`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

import yaml
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint, ModelSummary, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info

# Importing makes the short class names of the configuration files known.
import privacy.annotators  # noqa: F401
from lightning_modules.callbacks.config import SaveConfig
from lightning_modules.callbacks.data_free import is_data_free
from lightning_modules.callbacks.failures import NoLonelyCheckpoint
from lightning_modules.callbacks.progress import progress
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.callbacks.summary import NetworksLine
from lightning_modules.commands.audit import audit
from lightning_modules.commands.calibrate import calibrate
from lightning_modules.commands.client import client
from lightning_modules.commands.distill import distill
from lightning_modules.commands.errors import EXPECTED, message_of
from lightning_modules.commands.export import export
from lightning_modules.commands.ledger import ledger
from lightning_modules.commands.priors import priors
from lightning_modules.networks.named_code import texts_in
from lightning_modules.runtime.arguments import given_settings, prepare_arguments
from lightning_modules.runtime.checkpoint_io import WholeCheckpointIO
from lightning_modules.runtime.csv_logger import ContinuedCSVLogger, RunCSVLogger
from lightning_modules.runtime.hyperparameters import require_known_checkpoint
from lightning_modules.runtime.interruption import exit_status, how_to_resume, say_how_to_resume
from lightning_modules.runtime.loggers import name_runs
from lightning_modules.runtime.outcome import outcome
from lightning_modules.runtime.processes import (
    allow_tensor_cores,
    check_kind_of_strategy,
    check_launcher,
    check_strategy,
)
from lightning_modules.runtime.quiet import quiet
from lightning_modules.runtime.resuming import (
    find_checkpoint,
    hyperparameters,
    noted_by_run,
    read_checkpoint,
    refuse_differences,
    refuse_other_architecture,
    refuse_other_data,
)
from lightning_modules.runtime.run_folder import (
    RunFolderError,
    first_process,
    folder_of_checkpoint,
    own_folder,
    storage_failed,
)
from lightning_modules.runtime.runs import callbacks_of, run_folder
from lightning_modules.runtime.trainer_settings import check_trainer_settings
from lightning_modules.runtime.usage import UsageParser, unknown_command
from lightning_modules.runtime.wandb_runs import describe_runs
from privacy.identity import CheckpointError
from privacy.processes import failed_everywhere
from sweeps.runner.documents import render
from sweeps.runner.pipeline import pipeline
from sweeps.runner.sweep import sweep
from sweeps.runner.tables.commands import tables
from sweeps.runner.work import worker

__all__ = ["TranscriptionCLI", "main", "run"]

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "pipeline": lambda args: pipeline(args, run=run),
    "render": render,
    "calibrate": lambda args: calibrate(args, build=lambda rest: _cli(rest, run=False)),
    "distill": lambda args: distill(args, run=run, build=lambda rest: _cli(rest, run=False)),
    "tables": lambda args: tables(args, run=run),
    "sweep": lambda args: sweep(args, run=run),
    "priors": priors,
    "ledger": ledger,
    "audit": lambda args: audit(args, run=run),
    "client": client,
    "export": export,
    "work": lambda args: worker(args, run=run),
}
"""Commands beside LightningCLI's own, each with a parser of its own since they need no model."""

LINKED = ("num_classes", "image_shape", "batch_size")
"""What the data tell the model."""


class TranscriptionCLI(LightningCLI):
    """LightningCLI with short class names, links from data to model, and a folder of its own for every run."""

    def __init__(self, *, args: Sequence[str], **settings: Any) -> None:
        self._arguments = list(args)
        self._asked_for = args[0] if args else None
        #: Folder and counted steps of the run that is resumed, where they are known.
        self._begun_in: Path | None = None
        self._begun_steps: int | None = None
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
            CheckpointError: No checkpoint, none of this class, or settings that it cannot be used with.
        """
        command = self.config.get("subcommand")
        if not command:
            return
        config = self.config[command]
        given = config.get("ckpt_path")
        path = find_checkpoint(given, command=command, places=_last_checkpoints(config))
        if given and path is None:
            rank_zero_info(f"ckpt_path {given}: there is none yet, and the fit begins anew.")
        config["ckpt_path"] = None if path is None else str(path)
        if path is None:
            return
        content = read_checkpoint(path, command=command)
        before = hyperparameters(content)
        class_before, class_now = before.get("_class_path"), config.model.class_path
        if class_before is not None:
            before.pop("_class_path", None)
        else:
            before = {}  # of a script, which may have called it anything
        now = _as_dict(config.model.get("init_args") or {})
        named = {"class_before": class_before or class_now, "class_now": class_now, "checkpoint": str(path)}
        if command == "fit":
            applied = [f"model.{name}" for name in refuse_differences(before, now, **named)]
            callbacks = [_as_dict(callback) for callback in _listed(config.trainer.get("callbacks"))]
            seed = config.get("seed_everything")
            applied += refuse_other_data(
                content, _as_dict(config.data), seed=seed, callbacks=callbacks, checkpoint=str(path)
            )
            if applied:
                rank_zero_info(f"Changed by resuming, and applied from here on: {', '.join(applied)}.")
            self._begun_in = folder_of_checkpoint(path, noted=noted_by_run(content).get("folder"))
            self._begun_steps = _counted_steps(content)
            return
        refuse_differences({}, {}, **named)
        given_names = given_settings(self._arguments)
        refuse_other_architecture(before, now, given=given_names, command=command, checkpoint=str(path))
        if before:
            built = {"hyper_parameters": {"class_path": class_before, **before}}
            require_known_checkpoint(built, where=str(path), named=list(texts_in(config.as_dict())))
            # What is measured is what was trained: its architecture is in the checkpoint.
            settings = {"class_path": class_before, "dict_kwargs": before}
            self.config = self.parser.parse_object({command: {"model": settings}}, self.config)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Fills in the logger, the checkpoint and the result record where the configuration leaves them open."""
        settings = self._get(self.config_init, "trainer")
        if settings.logger is None:
            kwargs["logger"] = self._default_logger(settings.default_root_dir)
        else:
            name_runs(_listed(settings.logger), name=self._run_name)
            describe_runs(_listed(settings.logger), model=self.model, dataset=self._dataset)
        if self.subcommand == "fit" and not settings.fast_dev_run:
            callbacks = _listed(settings.callbacks)
            present = {type(callback) for callback in callbacks}
            if ModelCheckpoint not in present and settings.enable_checkpointing is not False:
                callbacks.append(ModelCheckpoint(filename="last", enable_version_counter=False, save_on_exception=True))
            if ResultRecord not in present:
                callbacks.append(ResultRecord())
            if settings.enable_model_summary is None and not any(issubclass(kind, ModelSummary) for kind in present):
                callbacks.append(NetworksLine())
            if settings.enable_progress_bar is None and not any(issubclass(kind, ProgressBar) for kind in present):
                callbacks.append(progress())
            kwargs["callbacks"] = [*callbacks, NoLonelyCheckpoint()]
        if not any(isinstance(plugin, CheckpointIO) for plugin in _listed(settings.plugins)):
            kwargs["plugins"] = [*_listed(settings.plugins), WholeCheckpointIO()]
        check_trainer_settings(
            settings,
            automatic_optimization=self.model.automatic_optimization,
            data_free=is_data_free(self.model),
        )
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
        # A resumed run stays where it began.
        folder = folder or (None if self._begun_in is None else str(self._begun_in))
        if folder is None:
            return RunCSVLogger(save_dir="runs", name=self._run_name)
        if self.subcommand == "fit" and not self.config_init[self.subcommand].get("ckpt_path"):
            return RunCSVLogger(save_dir=folder, name="", version="")
        return ContinuedCSVLogger(save_dir=folder, name="", version="", before_step=self._begun_steps)

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs it. A fit holds its folder meanwhile, and one that fails says how it is gone on with.

        Raises:
            CheckpointError: A checkpoint that does not fit the model.
            RunFolderError: Another fit is running in the folder, or it cannot be written.
        """
        checkpoint = self.config[subcommand].get("ckpt_path")
        try:
            if subcommand != "fit" or self.config[subcommand].trainer.fast_dev_run or not first_process():
                super()._run_subcommand(subcommand)
                return
            folder = self._folder()
            if folder is None:
                self._fit()
                self._say_outcome(run_folder(self.trainer))
                return
            with own_folder(folder, made=getattr(self.trainer.logger, "made", ())):
                self._fit()
            self._say_outcome(folder)
        except RuntimeError as error:
            if checkpoint is None or not str(error).startswith("Error(s) in loading state_dict"):
                raise
            raise CheckpointError(
                f"{checkpoint} holds other weights than {type(self.model).__name__} as it is configured: {error}"
            ) from error

    def _fit(self) -> None:
        try:
            super()._run_subcommand("fit")
        except BaseException as error:
            saved = getattr(self.trainer.checkpoint_callback, "_last_checkpoint_saved", "")
            last = saved or self.config["fit"].get("ckpt_path")
            folder = self._folder()
            line = how_to_resume(folder, Path(last)) if last and Path(last).is_file() else None
            if isinstance(error, OSError) and storage_failed(error):
                kept = f"; the last checkpoint that was written, {last}, is whole" if last else ""
                stopped = RunFolderError(f"the run's folder {folder} cannot be written any more ({error}){kept}")
                if line:
                    say_how_to_resume(stopped, line)
                raise stopped from error
            if line:
                say_how_to_resume(error, line)
            raise

    def _say_outcome(self, folder: Path) -> None:
        recorder = next(one for one in callbacks_of(self.trainer) if isinstance(one, ResultRecord))
        written = recorder.file_of(self.trainer)
        if written.is_file():
            saved = getattr(self.trainer.checkpoint_callback, "_last_checkpoint_saved", "")
            record = json.loads(written.read_text(encoding="utf-8"))
            rank_zero_info(outcome(record, folder=folder, checkpoint=Path(saved) if saved else None))

    def _folder(self) -> Path | None:
        """The run's; None before W&B has named it, which no other run's is."""
        logger = self.trainer.logger
        return None if isinstance(logger, WandbLogger) and logger.version is None else run_folder(self.trainer)

    @property
    def _run_name(self) -> str:
        return f"{type(self.model).__name__}_{self._dataset}".lower()

    @property
    def _dataset(self) -> str:
        return str(getattr(self.datamodule, "name", type(self.datamodule).__name__))


def _as_dict(settings: Any) -> dict[str, Any]:
    return settings.as_dict() if hasattr(settings, "as_dict") else dict(settings)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _last_checkpoints(config: Any) -> list[Path]:
    """Files that a fit of this configuration writes its last checkpoint to; none where they follow from its number."""
    root = config.trainer.get("default_root_dir")
    given = [_as_dict(callback) for callback in _listed(config.trainer.get("callbacks"))]
    savers = [one.get("init_args") or {} for one in given if str(one["class_path"]).endswith("ModelCheckpoint")]
    places = []
    for settings in savers or [{}]:
        folder = settings.get("dirpath") or (None if root is None else Path(root) / "checkpoints")
        name = settings.get("filename") or "last"
        if folder is not None:
            places += [Path(folder) / f"{one}.ckpt" for one in dict.fromkeys((name, "last")) if "{" not in one]
    return places


def _counted_steps(content: Mapping[str, Any]) -> int | None:
    """Steps that the loggers have counted when a checkpoint was saved."""
    epoch = content["loops"].get("fit_loop", {}).get("epoch_loop.state_dict", {})
    steps = epoch.get("_batches_that_stepped")
    return steps if isinstance(steps, int) else None


def run(args: Sequence[str]) -> TranscriptionCLI | None:
    """Runs one command in this process and lets its errors through.

    Raises:
        ValueError: There is no such command.
    """
    command = next((argument for argument in args if not argument.startswith("-")), None)
    if command in COMMANDS:
        COMMANDS[command](list(args)[1:])
        return None
    if args and command == args[0] and command not in LightningCLI.subcommands():
        raise ValueError(unknown_command(command, [*COMMANDS, *LightningCLI.subcommands()]))
    return _cli(args)


def _cli(args: Sequence[str], *, run: bool = True) -> TranscriptionCLI:
    # In a context of its own: jsonargparse leaves its last parser in the current one, and with it the model.
    return copy_context().run(
        TranscriptionCLI,
        model_class=LightningModule,
        datamodule_class=LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=SaveConfig,
        seed_everything_default=0,
        # Every method makes its own optimizers: `--optimizer` would replace them by a single one.
        auto_configure_optimizers=False,
        parser_kwargs={
            "description": "Also: `distill` goes from a teacher to a student's folder, `export RUN` makes such a "
            "folder of a finished run, `pipeline FILE` runs fits in order, `calibrate --config FILE` shows what they "
            "would cost, `render FILE` writes results into documents, `tables` runs and renders the papers' tables, "
            "`sweep FILE` follows W&B's sweep files without a server, `priors` draws what each image prior draws, "
            "`ledger` shows what was spent on private data, `audit` trains with and without a planted record and "
            "bounds epsilon from below, `client` answers a federation's server from where its data are; each has "
            "its own --help."
        },
        parser_class=UsageParser,
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
    given = sys.argv[1:]
    debug = "--debug" in given
    if debug:
        given = [argument for argument in given if argument != "--debug"]
        os.environ["JSONARGPARSE_DEBUG"] = "true"  # its errors too are raised where they are found
    quiet()
    try:
        run(given)
    except EXPECTED as error:
        if debug:
            raise
        # One of several processes speaks for all.
        another_speaks = failed_everywhere(error) and not first_process()
        sys.exit(1 if another_speaks else "\n".join([f"error: {message_of(error)}", *getattr(error, "__notes__", ())]))
    except (KeyboardInterrupt, SystemExit) as error:
        sys.exit(exit_status(error))
    return None
