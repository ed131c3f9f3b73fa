"""The command line as the parser takes it: installed files found, and null where it is meant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.runtime.network_names import find_networks
from lightning_modules.runtime.paths import find_configs

__all__ = ["given_settings", "prepare_arguments"]

_GROUPS = frozenset(
    (
        *("images", "optimizers", "gradient_targets", "label_targets", "generator_loss", "tangent_normal", "stages"),
        *("generator_training", "generator_phase", "vae_phase", "query_phase", "student_phase"),
    )
)


def prepare_arguments(args: Sequence[str]) -> list[str]:
    """Arguments of a command that builds a model.

    Args:
        args: As they were typed.

    Raises:
        ValueError: A network that is named cannot be found.
    """
    return _with_logger_folder(_null_by_configuration(find_networks(find_configs(args))))


_LOGGERS = ("CSVLogger", "TensorBoardLogger", "WandbLogger")


def _with_logger_folder(args: Sequence[str]) -> list[str]:
    """Has a logger that is named without a folder write below `runs/`, or into the run's own, as the default one does.

    TensorBoard's demands a folder, and the others would take the current one.
    """
    named = _value(args, "--trainer.logger")
    stated = ("--trainer.logger.save_dir", "--trainer.logger.init_args.save_dir", "--trainer.logger.dir")
    if named is None or named.rpartition(".")[2] not in _LOGGERS or any(_value(args, one) for one in stated):
        return list(args)
    return [*args, f"--trainer.logger.save_dir={_value(args, '--trainer.default_root_dir') or 'runs'}"]


def _value(args: Sequence[str], option: str) -> str | None:
    """The last value of an option, written with or without `=`."""
    found = None
    for position, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name == option:
            found = value if equals else next(iter(args[position + 1 :]), None)
    return found


def _null_by_configuration(args: Sequence[str]) -> list[str]:
    """Replaces `--model.GROUP.FIELD=null` by a configuration that says so.

    jsonargparse 4.53 reads the null of a dataclass's field that may be an object, such as `images.prior`, as the class
    path "None" when it comes by a flag, and as null when it comes by a configuration.
    """
    prepared: list[str] = []
    left = list(args)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if not equals and left:
            value = left[0]
        words = name.removeprefix("--model.").removeprefix("init_args.").split(".")
        if not name.startswith("--model.") or value != "null" or len(words) != 2 or words[0] not in _GROUPS:
            prepared.append(argument)
            continue
        if not equals:
            left.pop(0)
        content = {"model": {"init_args": {words[0]: {words[1]: None}}}}
        prepared.append(f"--config={json.dumps(content)}")
    return prepared


def given_settings(args: Sequence[str]) -> set[str]:
    """Names of the model's settings that somebody has written, such as `student.width`: the others are defaults.

    Args:
        args: As `prepare_arguments` gives them, the command first.
    """
    found: set[str] = set()
    for position, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if not equals:
            value = args[position + 1] if position + 1 < len(args) else ""
        if name in ("--config", "-c"):
            text = value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8")
            content = yaml.safe_load(text)
            content = content.get(args[0], content) if isinstance(content, Mapping) else {}
            found |= _names(content.get("model"))
        elif name == "--model" and value.startswith("{"):
            found |= _names(yaml.safe_load(value))
        elif name.startswith("--model."):
            words = name.removeprefix("--model.").rstrip("+").split(".")
            found.add(".".join(word for word in words if word not in ("init_args", "dict_kwargs", "class_path")))
    return found - {""}


def _names(settings: Any, prefix: str = "") -> set[str]:
    if not isinstance(settings, Mapping):
        return {prefix}
    found: set[str] = set()
    for name, value in settings.items():
        inside = name in ("init_args", "dict_kwargs", "class_path")
        found |= _names(value, prefix if inside else f"{prefix}.{name}" if prefix else str(name))
    return found
