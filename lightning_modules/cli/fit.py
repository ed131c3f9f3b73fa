"""Lightning's commands fit, validate, test and predict, with short class names and one folder per run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import set_parsing_settings
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info

import lightning_modules
from lightning_modules.base import DataFreeDistillation
from lightning_modules.callbacks.config import SaveConfig
from lightning_modules.callbacks.progress import ProgressLines
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.cli.changes import given_in, refuse_texts, say_changes
from lightning_modules.cli.errors import explain
from lightning_modules.cli.resuming import MAY_CHANGE, differences, find_checkpoint, flat, read_checkpoint, refuse
from lightning_modules.networks.named_code import texts_in
from lightning_modules.networks.names import look_in_current_folder
from lightning_modules.runtime.checkpoint_io import (
    LastCheckpoint,
    SkipCheckpointOnLocalError,
    WholeCheckpointIO,
    hyperparameters,
    noted_by_run,
)
from lightning_modules.runtime.hyperparameters import require_known_checkpoint
from lightning_modules.runtime.outcome import how_to_resume, outcome, say_how_to_resume
from lightning_modules.runtime.paths import find_configs
from lightning_modules.runtime.processes import (
    allow_tensor_cores,
    check_kind_of_strategy,
    check_launcher,
    check_strategy,
)
from lightning_modules.runtime.runs import LAST, first_process, fixed_folder, own_folder, run_folder
from lightning_modules.runtime.wandb_runs import describe_runs
from privacy.identity import CheckpointError
from privacy.mechanisms import DirectLabels, NoisyLabels, NoisyMeanResponse

# Written with their class, by which jsonargparse tells them from a method's other mechanism.
_SECOND = (NoisyLabels, NoisyMeanResponse, DirectLabels)
set_parsing_settings(subclasses_enabled=list(_SECOND))

PRECISIONS = ("32", "32-true", "bf16-mixed", "16-mixed")
"""Weights are float32, like images and the mechanisms' arithmetic; autocast is allowed."""


class UsageParser(LightningArgumentParser):
    """Lightning's parser with one-line errors and no abbreviations, whose meaning a new setting could change."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line and exit with status 2, or raise if jsonargparse is being debugged."""
        from jsonargparse._common import debug_mode_active

        if debug_mode_active() or not self.exit_on_error:
            super().error(message, ex)
        sys.stderr.write(f"error: {explain(message)}\n")
        self.exit(2)


class TranscriptionCLI(LightningCLI):
    """LightningCLI with short class names, links from data to model, and a separate folder for every run."""

    def __init__(self, *, args: Sequence[str], **settings: Any) -> None:
        self._arguments = list(args)
        super().__init__(args=list(args), **settings)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The subcommand that the arguments begin with, since building all parsers is slow; otherwise all."""
        every = LightningCLI.subcommands()
        return {name: skip for name, skip in every.items() if [name] == self._arguments[:1]} or every

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link facts of the data to the model's arguments."""
        for name in ("num_classes", "image_shape", "batch_size"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and state what becomes of settings of a class that another one replaces."""
        plain = [one for one in args if not one.startswith("--print_config")]  # which ends the command
        given = list(given_in(plain))
        refuse_texts(given)
        # jsonargparse resolves the short names of imported classes only.
        texts = {str(text).rpartition(".")[2] for settings in given for text in settings.values()}
        for name in texts.intersection(lightning_modules.__all__) or lightning_modules.__all__:
            getattr(lightning_modules, name)
        parsed = parser.parse_args(plain)
        say_changes(given, parsed.get(parsed.get("subcommand") or "", parsed).as_dict())
        if plain != args:
            parser.parse_args(args)
        self.config = parsed

    def _parse_ckpt_path(self) -> None:
        """Compare a checkpoint with the configuration; Lightning would override the user's settings by its own.

        Raises:
            CheckpointError: There is no checkpoint, it is of another class, or settings differ that must not.
        """
        command = self.config.get("subcommand")
        if not command:
            return
        config = self.config[command]
        given = config.get("ckpt_path")
        folder = _place(config.trainer)
        last = None if folder is None else folder / LAST
        path = find_checkpoint(given, command=command, last=last)
        config["ckpt_path"] = None if path is None else str(path)
        if path is None:
            if given and config.trainer.enable_checkpointing is False:
                raise CheckpointError("ckpt_path last needs trainer.enable_checkpointing, got false: there is no file")
            if given:
                rank_zero_info(f"ckpt_path {given}: there is no {last} yet: the fit begins.")
            elif command == "fit":
                savers = [one.get("init_args") or {} for one in _listed(config.trainer.callbacks)]
                own = [Path(one["dirpath"], f"{one['filename']}.ckpt") for one in savers if one.get("dirpath")]
                for place in filter(Path.is_file, [last, *own] if last else own):
                    rank_zero_info(f"Replaces {place} of an earlier fit; --ckpt_path {place} would go on from it.")
            return
        content = read_checkpoint(path, command=command)
        trained = hyperparameters(content)
        if not trained.get("_class_path"):
            return  # a script's checkpoint does not record its settings
        before = {"model": {"class_path": trained.pop("_class_path"), "init_args": trained}, **noted_by_run(content)}
        now = json.loads(self.parser.dump(self.config, skip_unset=False, skip_validation=True, format="json"))[command]
        if flat(before)["model"] != flat(now)["model"]:
            raise CheckpointError(
                f"{path} is of {before['model']['class_path']}, and the configuration is for "
                f"{now['model']['class_path']}"
            )
        differing = differences(before, now)
        fixed = {name: values for name, values in differing.items() if name not in MAY_CHANGE}
        if command == "fit":
            refuse(fixed, path)
            epochs = content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
            planned = config.trainer.max_epochs
            if planned not in (None, -1) and planned < epochs:  # before anything in the run's folder is overwritten
                raise CheckpointError(f"trainer.max_epochs must be at least the {epochs} of {path}, got {planned}")
            if epochs == planned:
                parts = ("model.mechanism.", "model.budget.")
                released = {name: values for name, values in differing.items() if name.startswith(parts)}
                refuse(released, path, why="the fit is done, and this would change nothing of it")
            if differing:
                rank_zero_info(f"Changed by resuming, and applied from here on: {', '.join(differing)}.")
            return
        # The trained model is measured, whatever configuration files say; an option that differs is a mistake.
        options = {one.removeprefix("--").partition("=")[0].replace("init_args.", "") for one in self._arguments}
        refuse(
            {name: fixed[name] for name in fixed if any(f"{option}.".startswith(f"{name}.") for option in options)},
            path,
            why=f"{command} measures what was trained, and that is not it",
            otherwise="",
        )
        class_path = before["model"]["class_path"]
        built = {"hyper_parameters": {"class_path": class_path, **trained}}
        require_known_checkpoint(built, where=str(path), named=list(texts_in(config.as_dict())))
        content = {"model": {"class_path": class_path, "dict_kwargs": trained}}
        if now.get("data"):
            content["data"] = _shaped(now["data"], trained.get("image_shape"))
        self.config = self.parser.parse_object({command: content}, self.config)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the logger, the checkpoint and the result record if the configuration does not set them."""
        settings = self._get(self.config_init, "trainer")
        dataset = str(getattr(self.datamodule, "name", type(self.datamodule).__name__))
        command = "" if self.subcommand in (None, "fit") else f"{self.subcommand}_"  # the numbers are those of fits
        name = f"{command}{type(self.model).__name__}_{dataset}".lower()
        if settings.logger is None:
            folder = _place(settings)
            kwargs["logger"] = self._csv_logger(folder) if folder else CSVLogger("runs", name=name)
        else:
            describe_runs(_listed(settings.logger), model=self.model, dataset=dataset)
        if self.subcommand == "fit" and not settings.fast_dev_run:
            callbacks = _listed(settings.callbacks)
            present = {type(callback) for callback in callbacks}
            for one in callbacks:
                if isinstance(one, ModelCheckpoint) and one.save_last == "link":
                    raise ValueError(
                        f"save_last of ModelCheckpoint must not be link: {LAST} is always written, and must be the "
                        "last state, whatever is monitored"
                    )
            if settings.enable_checkpointing is not False:
                callbacks.insert(0, LastCheckpoint())  # the first is `trainer.checkpoint_callback`
            if ResultRecord not in present:
                callbacks.append(ResultRecord())
            if settings.enable_progress_bar is None and not any(issubclass(kind, ProgressBar) for kind in present):
                if sys.stdout.isatty():
                    callbacks.append(RichProgressBar(theme=RichProgressBarTheme(metrics_format=".3g")))
                else:  # Lightning's bars would only write one line at the end
                    callbacks.append(ProgressLines())
                    kwargs["enable_progress_bar"] = False
            kwargs["callbacks"] = [*callbacks, SkipCheckpointOnLocalError()]
        if not any(isinstance(plugin, CheckpointIO) for plugin in _listed(settings.plugins)):
            kwargs["plugins"] = [*_listed(settings.plugins), WholeCheckpointIO()]
        if isinstance(self.model, DataFreeDistillation) and str(settings.precision) not in ("None", *PRECISIONS):
            raise ValueError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {settings.precision}")
        # Also checked in the modules, but here before processes are started and data are read.
        check_kind_of_strategy(settings.strategy)
        if settings.devices == settings.strategy == "auto":
            kwargs["devices"] = 1  # more devices must be chosen: they need a batch size that they can share
        trainer = super().instantiate_trainer(**kwargs)
        check_launcher(trainer)
        allow_tensor_cores(trainer.strategy.root_device)
        check_strategy(trainer, averages_itself=not self.model.automatic_optimization)
        return trainer

    def _csv_logger(self, folder: Path) -> CSVLogger:
        """Make Lightning's logger, which deletes existing rows, after moving those of an earlier attempt elsewhere."""
        if self.subcommand != "fit":
            return CSVLogger(folder, name="", version=str(self.subcommand))
        metrics = folder / "metrics.csv"
        if self.config_init["fit"].get("ckpt_path") and metrics.is_file() and first_process():
            metrics.replace(folder / f"metrics_{len(list(folder.glob('metrics*.csv')))}.csv")
        return CSVLogger(folder, name="", version="")

    def _run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand. A fit holds its folder's lock, and a failing one prints how to resume it.

        Raises:
            RunFolderError: Another fit is running in the folder, or it cannot be written.
        """
        if subcommand != "fit" or self.config[subcommand].trainer.fast_dev_run or not first_process():
            super()._run_subcommand(subcommand)
            return
        logger = self.trainer.logger
        unnamed = isinstance(logger, WandbLogger) and logger.version is None  # W&B names the folder as the fit begins
        with nullcontext() if unnamed else own_folder(run_folder(self.trainer)):
            try:
                super()._run_subcommand("fit")
            except BaseException as error:
                last = self._saved() or self.config["fit"].get("ckpt_path")
                if last and Path(last).is_file():
                    say_how_to_resume(error, how_to_resume(run_folder(self.trainer), Path(last)))
                raise
        recorder = next(one for one in self.trainer.callbacks if isinstance(one, ResultRecord))  # type: ignore[attr-defined]
        if (written := recorder.file_of(self.trainer)).is_file():
            record = json.loads(written.read_text(encoding="utf-8"))
            saved = self._saved()
            rank_zero_info(outcome(record, folder=run_folder(self.trainer), checkpoint=Path(saved) if saved else None))

    def _saved(self) -> str:
        return getattr(self.trainer.checkpoint_callback, "_last_checkpoint_saved", "")


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _shaped(data: Any, shape: Sequence[int] | None) -> Any:
    """Set the size and channels of pictures to those of training, unless the data settings have their own."""
    if not isinstance(data, Mapping):
        return data
    given = dict(data.get("init_args") or {})
    if "dataset" in given:
        given["dataset"] = _shaped(given["dataset"], shape)
    elif shape is not None and str(data["class_path"]).endswith(".ImageFolder"):
        taken = {"size": shape[1], "channels": shape[0]}
        given |= {name: value for name, value in taken.items() if given.get(name) is None}
    return {**data, "init_args": given}


def _place(settings: Any) -> Path | None:
    """Return the folder of any fit with these settings of the trainer; None if each fit gets one of its own."""
    root = settings.default_root_dir
    if not settings.logger:
        return Path(root) if root else None
    first = _listed(settings.logger)[0]  # `true` is Lightning's own logger, which counts versions
    return None if first is True else fixed_folder(instantiate_class((), first.as_dict()), root or Path.cwd())


def show_settings(command: str, model: str) -> None:
    """Prints every setting of a model, with those of the mechanisms that it has a choice of."""
    kinds = getattr(getattr(lightning_modules, model, None), "mechanisms", ())
    choice = [
        [f"--model={model}", f"--model.mechanism.help={kind.__name__}"]
        for kind in kinds
        if len(kinds) > 1 or kind in _SECOND
    ]
    for options in ([f"--model.help={model}"], *choice):
        with suppress(SystemExit):
            command_line([command, *options])


def command_line(args: Sequence[str], *, run: bool = True) -> TranscriptionCLI:
    """Parse the arguments of one of Lightning's commands, build the objects that they name, and run it.

    Arguments begin with the command, which is left out if nothing is run.
    """
    look_in_current_folder()  # for the user's own methods, data sets and priors
    # jsonargparse keeps its last parser, and with it the model, in the current context: use a separate one.
    return copy_context().run(
        TranscriptionCLI,
        model_class=LightningModule,
        datamodule_class=LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_callback=SaveConfig,
        seed_everything_default=0,
        trainer_defaults={"num_sanity_val_steps": 0, "log_every_n_steps": 10},
        # Methods make their own optimizers, which `--optimizer` would replace by a single one.
        auto_configure_optimizers=False,
        parser_class=UsageParser,
        args=find_configs(args),
        run=run,
    )
