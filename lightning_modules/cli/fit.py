"""Lightning's commands fit, validate, test and predict, with short class names and one folder per run.

What becomes of settings when several configurations name different classes is said, or refused: jsonargparse 4.53 keeps
settings that both classes take, drops the others, and says neither.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import math
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partialmethod
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import set_parsing_settings
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info

import lightning_modules
from datamodules import ImageDataModule
from datamodules.files import missing_data
from lightning_modules.callbacks.progress import ProgressLines
from lightning_modules.callbacks.results import ResultRecord, epsilon_of, judged, percent, role
from lightning_modules.callbacks.saving import LastCheckpoint, SaveConfig, SkipCheckpointOnLocalError, WholeCheckpointIO
from lightning_modules.cli.configs import find_configs, flat, given_in, innermost
from lightning_modules.cli.errors import explain, unknown_setting
from lightning_modules.cli.resuming import require_same
from lightning_modules.named_code import code_named_in, find_named, require_known_run, texts_in, unknown_code
from lightning_modules.training.run import LAST, check_strategy, first_process, own_folder, run_folder
from privacy.account import BudgetExceeded
from privacy.identity import CheckpointError
from privacy.mechanisms.base import Mechanism

set_parsing_settings(subclasses_enabled=[Mechanism])  # a method may have a choice of them, by their class

_MODEL = ("model", "model.mechanism", "model.budget")
"""Whose settings are never dropped: they decide what a run costs."""

_GROUPS = {
    "model.teacher": "path", "model.student": "network", "model.images": "source", "model.budget": "target_epsilon",
}  # fmt: skip
"""Groups of settings, and the one of each that is most often meant by a text."""

#: Methods whose networks no command publishes.
_NEVER_PUBLISHED = ("Teacher", "TeacherEnsemble", "FedAvg", "DirectTraining")
_PRIVATE = "record-level ε: inf: nothing bounds what it reveals about a training record; it must stay private"


class UsageParser(LightningArgumentParser):
    """Lightning's parser with one-line errors and no abbreviations, whose meaning a new setting could change."""

    #: Of what was just parsed, and so validated: a fifth of a start's time.
    dump = partialmethod(LightningArgumentParser.dump, skip_validation=True)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints one line and exits with status 2, or raises if jsonargparse is being debugged."""
        actions = getattr(ex, "subcommand_parser", self)._actions
        message = unknown_setting(message, {one.dest: getattr(one, "_typehint", one.type) for one in actions})
        if os.environ.get("JSONARGPARSE_DEBUG") == "true" or not self.exit_on_error:
            super().error(message, ex)
        sys.stderr.write(f"error: {explain(message)}\n")
        self.exit(2)


class TranscriptionCLI(LightningCLI):
    """LightningCLI with short class names, links from data to model, and a separate folder for every run.

    Args:
        args: One of Lightning's commands with its arguments; without the command if nothing is run.
        run: Whether to run the command once the objects that the arguments name are built.
    """

    def __init__(self, args: Sequence[str], *, run: bool = True) -> None:
        self._arguments = [one for one in find_configs(args) if one != "--force"]
        self._force = "--force" in args  # of this command alone, so no setting
        # The user's own methods, data sets and priors.
        given = [part for argument in args for part in argument.split("=", 1)]
        named = list(texts_in(given, suffixes=(".yaml", ".yml", ".json")))
        find_named(named)
        for file in {*self._arguments} - {*args}:
            if file.endswith("config.yaml"):  # found in a run's folder, and not given by the user
                require_known_run(Path(file), named=named)
        super().__init__(
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
            args=self._arguments,
            run=run,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The subcommand that the arguments begin with, since building all parsers is slow; otherwise all."""
        every = LightningCLI.subcommands()
        return {name: skip for name, skip in every.items() if [name] == self._arguments[:1]} or every

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link facts of the data to the model's arguments."""
        for name in ("num_classes", "image_shape", "batch_size"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses, and states what becomes of settings of a class that another one replaces.

        Raises:
            ValueError: A text is given for a group of settings, or see `say_changes`.
        """
        plain = [one for one in args if not one.startswith("--print_config")]  # which ends the command
        given = list(given_in(plain))
        for settings, (name, field) in itertools.product(given, _GROUPS.items()):
            # jsonargparse would read it as the name of a settings file.
            if (text := settings.get(name)) is not None and not str(text).endswith((".yaml", ".yml", ".json")):
                raise ValueError(f"{name} is a group of settings: give {name}.{field}, got {text!r}")
        # jsonargparse resolves the short names of imported classes only.
        texts = {str(text).rpartition(".")[2] for settings in given for text in settings.values()}
        for name in texts.intersection(lightning_modules.__all__) or lightning_modules.__all__:
            getattr(lightning_modules, name)
        parsed = parser.parse_args(plain)
        say_changes(given, parsed.get(parsed.get("subcommand") or "", parsed).as_dict())
        if plain != args:
            parser.parse_args(args)
        self.config = parsed

    def instantiate_classes(self) -> None:
        """Builds the objects.

        Raises:
            MissingDataError: There is no file of the data.
        """
        if self.subcommand == "fit":
            _require_files(self.config["fit"].data)
        super().instantiate_classes()

    def _parse_ckpt_path(self) -> None:
        """Measures what was trained, whatever configuration files say; a fit's checkpoint is compared by `_resume`.

        Raises:
            CheckpointError: See `require_same`.
        """
        command = self.config.get("subcommand")
        if command in (None, "fit"):
            return
        config = self.config[command]
        if trained := self._compared(config.ckpt_path):
            if config.get("data"):
                _shape(config.data, trained.get("image_shape"))
            super()._parse_ckpt_path()

    def _compared(self, checkpoint: str) -> dict[str, Any]:
        """See `require_same`; Lightning would override the user's settings by the checkpoint's."""
        command = self.config.subcommand
        now = json.loads(self.parser.dump(self.config, skip_unset=False, skip_validation=True, format="json"))[command]
        named = list(texts_in(self.config[command].as_dict()))
        return require_same(Path(checkpoint), now, command=command, arguments=self._arguments, named=named)

    def _resume(self) -> None:
        """Finds the checkpoint that a fit resumes from, if any, and compares it with the configuration.

        Raises:
            CheckpointError: The fit has no folder yet, or see `require_same`.
        """
        given, logger = self.config["fit"].get("ckpt_path"), self.trainer.logger
        version = logger.version if isinstance(logger, WandbLogger) else getattr(logger, "_version", "")
        last = None if version is None else run_folder(self.trainer) / LAST
        if given == "last":
            if last is None:
                raise CheckpointError(
                    "ckpt_path last is of the run's folder, and here each fit gets a new folder: set "
                    "trainer.default_root_dir, or the version of trainer.logger, or give `fit --resume RUN`"
                )
            given = str(last) if last.is_file() else None
            self.config["fit"]["ckpt_path"] = self.config_init["fit"]["ckpt_path"] = given
        elif given is None and last is not None and last.is_file():
            rank_zero_info(f"Replaces {last} of an earlier fit; --ckpt_path {last} would go on from it.")
        if given is not None:
            self._compared(given)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the logger, the checkpoint and the result record if the configuration does not set them."""
        settings = self._get(self.config_init, "trainer")
        dataset = str(getattr(self.datamodule, "name", type(self.datamodule).__name__))
        command = "" if self.subcommand in (None, "fit") else f"{self.subcommand}_"  # the numbers are those of fits
        name = f"{command}{type(self.model).__name__}_{dataset}".lower()
        if settings.logger is None:
            root, version = settings.default_root_dir, command.rstrip("_")
            kwargs["logger"] = CSVLogger(root, "", version) if root else CSVLogger("runs", name)
        else:
            describe_runs(_listed(settings.logger), model=self.model, dataset=dataset)
        if self.subcommand == "fit" and not settings.fast_dev_run:
            callbacks = _listed(settings.callbacks)
            present = {type(callback) for callback in callbacks}
            for one in callbacks:
                if isinstance(one, ModelCheckpoint) and one.save_last == "link":
                    raise ValueError(f"save_last of ModelCheckpoint must not be link: {LAST} is the last state")
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
        # Before Lightning replaces a precision that the device does not have.
        if (allowed := getattr(self.model, "precisions", None)) and str(settings.precision) not in ("None", *allowed):
            raise ValueError(f"trainer.precision must be one of {', '.join(allowed)}, got {settings.precision}")
        if settings.devices == settings.strategy == "auto":
            kwargs["devices"] = 1  # more devices must be chosen: they need a batch size that they can share
        trainer = super().instantiate_trainer(**kwargs)
        # Also checked in the modules, but here before processes are started and data are read.
        check_strategy(trainer, self.model)
        device = trainer.strategy.root_device.type
        native = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if device == "cpu" and "bf16" in str(settings.precision) and not native:
            warnings.warn(  # attributed to this line: some filter what Lightning's calls say
                f"This processor has no bfloat16, and trainer.precision={settings.precision} makes steps "
                "several times as long: --trainer.precision 32-true",
                stacklevel=1,
            )
        if device == "cuda" and torch.get_float32_matmul_precision() == "highest":
            torch.set_float32_matmul_precision("high")  # TF32, unless configured otherwise
        return trainer

    def _keep_logs(self) -> None:
        """Moves logs of an earlier run in the same folder aside; Lightning would delete them, and warns of that."""
        warnings.filterwarnings("ignore", "Experiment logs directory")
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVLogger) and (log := Path(logger.log_dir, "metrics.csv")).is_file():
                log.replace(log.with_name(f"metrics_{len(list(log.parent.glob('metrics*.csv')))}.csv"))

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs a subcommand. A fit holds its folder's lock, and a failing one prints how to resume it.

        Raises:
            RunFolderError: Another fit is running in the folder, or it cannot be written.
            ValueError: A new fit would replace a checkpoint of a fixed name, such as a teacher.
        """
        if subcommand == "fit":
            self._resume()
        else:  # without a fit's callbacks, which Lightning warns of
            for message in ("Be aware that when using `ckpt_path`, callbacks used to", "The dirpath has changed from"):
                warnings.filterwarnings("ignore", message)
        if subcommand != "fit" or self.config[subcommand].trainer.fast_dev_run or not first_process():
            if first_process():
                self._keep_logs()
            super()._run_subcommand(subcommand)
            return
        for one in self.trainer.checkpoint_callbacks:
            if isinstance(one, ModelCheckpoint) and one.dirpath:  # a fixed place, such as teachers/digits.ckpt
                file = Path(one.dirpath, f"{one.filename}{one.FILE_EXTENSION}")
                fixed = file.is_file() and not one._enable_version_counter
                if fixed and not self._force and not self.config[subcommand].get("ckpt_path"):
                    raise ValueError(f"{file} exists, and this fit would replace it: move it, or add --force")
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        logger = self.trainer.logger
        unnamed = isinstance(logger, WandbLogger) and logger.version is None  # W&B names the folder as the fit begins
        with nullcontext() if unnamed else own_folder(run_folder(self.trainer)):
            self._keep_logs()
            try:
                super()._run_subcommand("fit")
            except BaseException as error:
                saved = getattr(self.trainer.checkpoint_callback, "_last_checkpoint_saved", "")
                last = saved or self.config["fit"].get("ckpt_path") or ""
                say_how_to_resume(error, folder=run_folder(self.trainer), checkpoint=last)
                raise
        folder = run_folder(self.trainer)
        if (written := folder / "result.json").is_file():
            record, last = json.loads(written.read_text(encoding="utf-8")), folder / LAST
            rank_zero_info(outcome(record, folder=folder, checkpoint=last if last.is_file() else None))


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


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


def say_changes(sources: Iterable[Mapping[str, Any]], parsed: Mapping[str, Any]) -> None:
    """States which given settings a later class keeps, and which it does not take.

    Args:
        sources: What was given, see `given_in`.
        parsed: The configuration that was parsed from it.

    Raises:
        ValueError: Settings of a model, a mechanism or a budget would be lost.
    """
    final, before = flat(parsed), dict[str, Any]()
    for given in sources:
        for name in [name for name in given if name in before and _class(given[name]) != _class(before[name])]:
            own = [one for one in before if one.startswith(f"{name}.") and one not in given]
            lost = [one for one in own if one not in final]
            kept = [one for one in own if one in final and final[one] == before[one]]
            parts = [
                f", {how} its {', '.join(one.removeprefix(f'{name}.') for one in names)}"
                for how, names in (("with", kept), ("without", lost))
                if names
            ]
            text = f"{_class(given[name])} instead of {_class(before[name])}{''.join(parts)}"
            if lost and name in _MODEL:
                raise ValueError(f"{text}: write a configuration for {_class(given[name])} alone")
            if parts:
                rank_zero_info(f"{text}.")
            for one in lost:
                del before[one]
        before |= given
    if lost := [one for one in before if one not in final and one.startswith(("model.mechanism.", "model.budget."))]:
        raise ValueError(f"{', '.join(lost)} would be lost beside settings of another class: leave out one of them")


def _class(value: Any) -> Any:
    return value.rpartition(".")[2] if isinstance(value, str) else value


def _shape(data: Any, shape: Sequence[int] | None) -> None:
    """Sets the size and channels of pictures to those of training, unless the data settings have their own."""
    data = innermost(data)
    if shape is not None and data.class_path.endswith(".ImageFolder"):
        for name, value in (("size", shape[1]), ("channels", shape[0])):
            if data.init_args.get(name) is None:
                data.init_args[name] = value


def _require_files(data: Any) -> None:
    """Refuses data that are not there before a model is made, which may compute its features for minutes."""
    inner: Any = innermost(data) if data else None
    module, _, name = (inner.class_path if inner else "").rpartition(".")
    kind: Any = getattr(importlib.import_module(module), name, None) if module else None
    own = inspect.isclass(kind) and issubclass(kind, ImageDataModule)
    if not own or (kind.files, kind.missing) == (ImageDataModule.files, ImageDataModule.missing):
        return
    dataset = instantiate_class((), inner.as_dict())
    missing = {part: dataset.missing(part) for part in ("train", "test")}
    if all(missing.values()) and not dataset.download:
        needed = ["test"] if data.class_path.endswith("SyntheticSteps") else [*missing]
        raise missing_data(dataset, [*dict.fromkeys(name for part in needed for name in missing[part])])


def show_settings(args: Sequence[str]) -> bool:
    """Prints every setting of a model and of the mechanisms that it has a choice of, for `--model NAME --help`.

    Returns:
        Whether the arguments name a model.
    """
    models = [str(given["model"]) for given in given_in(args) if given.keys() == {"model"}]
    if not models:
        return False
    # A name with a dot is of somebody else's class.
    kind = getattr(lightning_modules, models[-1], None) if models[-1].isidentifier() else None
    named = [f"--model.mechanism.help={one.__name__}" for one in getattr(kind, "mechanisms", ())]
    for options in ([f"--model.help={models[-1]}"], *([f"--model={models[-1]}", one] for one in named)):
        with suppress(SystemExit):
            copy_context().run(TranscriptionCLI, [args[0], *options])
    return True


# --- what is said after a fit ---


def outcome(record: Mapping[str, Any], *, folder: Path, checkpoint: Path | None) -> str:
    """Summarises a finished fit for the user, from its `result.json`."""
    accuracy = f"{percent(record['accuracy'])} of the test split"
    lines = [f"{role(record)}, {record['dataset']}: {accuracy} after {record['steps']:,} steps"]
    if between := record.get("not_finite_between"):
        first, last = between
        lines.append(f"NOT FINITE: weights became NaN or infinite between steps {first:,} and {last:,}: it is useless")
    elif (share := record["largest_share"]) >= 0.99:
        lines.append(f"COLLAPSED: it predicts one class for {100 * share:.1f} % of the test images")
    lines += judged(record)
    if "statement" not in record:  # a guarantee has been printed already
        lines.append(_PRIVATE)
    if checkpoint is not None:
        lines += [f"checkpoint: {checkpoint}", f"test:    {_of_run('test', folder)}"]
        if record["method"] != "DPSGDTeacher":  # its noise was chosen for these epochs
            lines.append(f"resume:  {_of_run('fit', folder)} --trainer.max_epochs N")
        if record["method"] not in _NEVER_PUBLISHED:
            unbounded = ["--unprotected"] if math.isinf(epsilon_of(record)) else []
            settings = record["config"]["model"]["init_args"]
            code = unknown_code((settings.get("student") or settings).get("network"))
            own = [] if code is None else ["--network", code]
            lines.append(f"publish: {_command('export', folder, '--to', 'DIR', *own, *unbounded)}")
    return "\n".join(lines)


def _of_run(command: str, folder: Path) -> str:
    """A command about a run; with its files if they name code of the user's, which no folder may."""
    if code_named_in(folder / "config.yaml") is not None:
        return _command(command, "--config", folder / "config.yaml", "--ckpt_path", folder / LAST)
    return _command(command, *(["--resume"] if command == "fit" else []), folder)


def _command(*words: object) -> str:
    return shlex.join(["LightningCLI", *map(str, words)])


def say_how_to_resume(error: BaseException, *, folder: Path, checkpoint: str) -> None:
    """Prints the command that resumes a fit last, below the traceback if there is one.

    Nothing is said of what would end the same fit again: a setting that is refused, or a budget that is spent.
    """
    if isinstance(error, (ValueError, TypeError, BudgetExceeded)) or not Path(checkpoint).is_file():
        return
    line = f"To resume: {_of_run('fit', folder)}"
    if Path(checkpoint).resolve() != (folder / LAST).resolve():
        line = f"To resume: the same command with --ckpt_path {shlex.quote(checkpoint)}"
    if isinstance(error, (SystemExit, KeyboardInterrupt)) or not hasattr(error, "add_note"):
        rank_zero_info(line)
    else:
        error.add_note(line)
