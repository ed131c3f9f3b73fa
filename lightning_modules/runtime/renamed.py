"""Settings under the names that they had before version 0.2: read under the new ones, with a warning that names them.

Configuration files, flags of the command line and checkpoints pass through here; a script's keyword arguments do not.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
import yaml

__all__ = [
    "RENAMED",
    "files_made_absolute",
    "plain_content",
    "upgrade_arguments",
    "upgrade_config",
    "upgrade_name",
    "upgrade_settings",
    "upgraded_checkpoint",
]

_IMAGES = {"images": "images.source", "prior": "images.prior", "generator": "images.generator"}
_WARM = {"generator_warm_start": "images.warm_start_steps"}
_OPTIMIZERS = {
    "student_optimizer": "optimizers.student",
    "student_lr_scheduler": "optimizers.student_lr_scheduler",
    "generator_optimizer": "optimizers.generator",
}
_TARGETS = {
    "gamma": "gradient_targets.gamma",
    "student_follows": "gradient_targets.student_target",
    "dkd_alpha": "gradient_targets.dkd_alpha",
    "dkd_beta": "gradient_targets.dkd_beta",
}
_TERMS = {
    name: f"generator_loss.{name}"
    for name in ("one_hot_weight", "balance_weight", "activation_weight", "activation_norm", "student_loss_weight")
}
_TANGENT_NORMAL = {
    name: f"tangent_normal.{name}"
    for name in (
        "tangent_weight",
        "normal_weight",
        "entropy_weight",
        "entropy_term",
        "tangent_length",
        "normal_length",
        "directions",
    )
}

RENAMED: Mapping[str, Mapping[str, str]] = {
    "DPDFD": {**_IMAGES, **_WARM, **_OPTIMIZERS, **_TARGETS, **_TERMS},
    "DPSD": {
        **_IMAGES,
        **_WARM,
        **_OPTIMIZERS,
        **_TARGETS,
        **_TERMS,
        "distillation": "gradient_targets.loss",
        "schedule": "label_targets.schedule",
        "noise_correction": "label_targets.noise_correction",
    },
    "LabelDP": {
        **_IMAGES,
        **_WARM,
        **_OPTIMIZERS,
        **{name: f"stages.{name}" for name in ("threshold", "noise_correction", "train_on")},
        **{
            name: f"generator_training.{name}"
            for name in (
                "discriminator",
                "pretraining_steps",
                "one_hot_weight",
                "balance_weight",
                "statistics_weight",
                "student_loss_weight",
            )
        },
    },
    "DGD": {
        **_IMAGES,
        **_OPTIMIZERS,
        **_TANGENT_NORMAL,
        "pool": "images.pool",
        "pool_part": "images.pool_part",
        "generator_lr_scheduler": "optimizers.generator_lr_scheduler",
        "baseline": "generator_phase.baseline",
        "baseline_network": "generator_phase.baseline_network",
        "generator_steps": "generator_phase.steps",
        "one_hot_weight": "generator_phase.one_hot_weight",
        "balance_weight": "generator_phase.balance_weight",
        "activation_weight": "generator_phase.activation_weight",
        "statistics_weight": "generator_phase.statistics_weight",
        "vae": "vae_phase.network",
        "vae_steps": "vae_phase.steps",
        "vae_optimizer": "vae_phase.optimizer",
        "queries": "query_phase.queries",
        "query_selection": "query_phase.selection",
        "query_candidates": "query_phase.candidates",
        **{
            name: f"student_phase.{name}"
            for name in ("pseudo_label_weight", "pseudo_label_threshold", "distortion", "query_distortion")
        },
    },
    "Distillation": {
        "student_optimizer": "optimizers.student",
        "student_lr_scheduler": "optimizers.student_lr_scheduler",
    },
}
"""For each class, from the old name of a setting to the new one."""

_VALUES: Mapping[tuple[str, str], str] = {("tangent_normal.entropy_term", "letter"): "as_printed"}


def upgrade_settings(class_path: str, settings: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Settings of a class under their current names.

    Args:
        class_path: Of the class; of any other than those of `RENAMED` the settings come back as they are.
        settings: Its `init_args`, of an older version or of this one.
        where: They stand, for the warning.
    """
    names = RENAMED.get(_class_name(class_path), {})
    upgraded: dict[str, Any] = {}
    for name, value in settings.items():
        new = names.get(name)
        if new is None or (name == "images" and not _is_source(value)):
            merged = upgraded.get(name)
            both = isinstance(merged, dict) and isinstance(value, Mapping)
            upgraded[name] = {**merged, **value} if both else value  # type: ignore[dict-item]
            continue
        _warn(name, new, where)
        group, _, field = new.partition(".")
        inner = upgraded.setdefault(group, {})
        upgraded[group] = {**inner, field: _VALUES.get((new, str(value)), value)}
    return upgraded


def upgrade_config(content: Any, *, class_name: str = "", where: str) -> tuple[Any, str]:
    """A configuration file's values under their current names, and the model's class from there on.

    Args:
        content: What the file holds.
        class_name: The model's class so far: a later file may override settings without naming it.
        where: It stands, for the warning.
    """
    model = content.get("model") if isinstance(content, Mapping) else None
    if isinstance(model, str):
        return content, _class_name(model)
    if not isinstance(model, Mapping):
        return content, class_name
    class_name = _class_name(str(model.get("class_path", class_name)))
    inside = isinstance(model.get("init_args"), Mapping)
    given = model["init_args"] if inside else {name: value for name, value in model.items() if name != "class_path"}
    settings = upgrade_settings(class_name, given, where=where)
    if settings == given:
        return content, class_name
    kept = {name: value for name, value in model.items() if inside or name == "class_path"}
    return {**content, "model": {**kept, **({"init_args": settings} if inside else settings)}}, class_name


def upgrade_name(name: str, value: Any, *, class_name: str, where: str) -> tuple[str, Any]:
    """A dotted name such as `model.images` and its value, under the current name.

    Args:
        name: Of a setting.
        value: Text, or a plain value.
        class_name: The model's class.
        where: They stand, for the warning.
    """
    prefix = next((prefix for prefix in ("model.init_args.", "model.") if name.startswith(prefix)), None)
    if prefix is None:
        return name, value
    first, dot, rest = name.removeprefix(prefix).partition(".")
    new = RENAMED.get(class_name, {}).get(first)
    of_today = isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{"))
    if new is None or (first == "images" and (dot or of_today)):
        return name, value
    _warn(first, new, where)
    return f"{prefix}{new}{dot}{rest}", _VALUES.get((new, str(value)), value)


def upgrade_arguments(args: Sequence[str]) -> list[str]:
    """Arguments of the command line under their current names.

    A configuration file that holds an older name is handed on by its content; flags are renamed one by one.
    """
    upgraded = list(args)
    class_name = ""
    for position, path in _configs(upgraded):
        before = _read(path)
        content, class_name = upgrade_config(before, class_name=class_name, where=path)
        if content is not before:
            text = json.dumps(files_made_absolute(content, Path(path).resolve().parent), default=str)
            upgraded[position] = f"--config={text}" if upgraded[position].startswith("--config=") else text
    for position, argument in enumerate(upgraded):
        name, equals, value = argument.partition("=")
        if name in ("--model", "--model.class_path"):
            class_name = _class_name(value if equals else (upgraded[position + 1 : position + 2] or [""])[0])
    for position, argument in enumerate(upgraded):
        if argument.startswith("--model."):
            flag, equals, value = argument.partition("=")
            following = value if equals else (upgraded[position + 1 : position + 2] or [""])[0]
            name, new = upgrade_name(flag[2:], following, class_name=class_name, where=argument)
            upgraded[position] = f"--{name}{equals}{new if equals else ''}"
            if not equals and new != following:
                upgraded[position + 1] = new
    return upgraded


def plain_content(checkpoint: str | Path | IO[bytes]) -> Any:
    """What a checkpoint holds; None where it cannot be read as plain values: whoever loads it says why."""
    try:
        return torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception:
        return None
    finally:
        if not isinstance(checkpoint, (str, Path)):
            checkpoint.seek(0)


def upgraded_checkpoint(path: str | Path | IO[bytes], content: Any) -> str | Path | IO[bytes]:
    """A checkpoint whose settings have their current names: itself, or a copy in memory if it is of an older version.

    Args:
        path: Of the file; what is no file, or cannot be read as plain values, comes back as it is.
        content: See `plain_content`.
    """
    if not isinstance(path, (str, Path)):
        return path
    found = content.get("hyper_parameters") if isinstance(content, dict) else None
    if not isinstance(found, Mapping) or "_class_path" not in found:
        return path
    settings = upgrade_settings(str(found["_class_path"]), found, where=str(path))
    if settings == dict(found):
        return path
    buffer = io.BytesIO()
    torch.save({**content, "hyper_parameters": settings}, buffer)
    buffer.seek(0)
    return buffer


def _class_name(class_path: str) -> str:
    return class_path.rsplit(".", 1)[-1]


def _is_source(value: Any) -> bool:
    """Whether `images` is what it was before: the name of a source."""
    return not isinstance(value, Mapping)


def _configs(args: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Positions and paths of the configuration files among arguments."""
    for position, argument in enumerate(args):
        if argument.startswith("--config="):
            yield position, argument.removeprefix("--config=")
        elif argument in ("--config", "-c") and position + 1 < len(args):
            yield position + 1, args[position + 1]


def files_made_absolute(value: Any, folder: Path) -> Any:
    """Settings in which files of settings, which a configuration names relative to itself, are found from everywhere.

    What is handed on by its content has no folder: the parser would look for them in the working folder.
    """
    if isinstance(value, Mapping):
        return {key: files_made_absolute(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [files_made_absolute(item, folder) for item in value]
    if isinstance(value, str) and value and len(value) < 1024 and "\n" not in value:
        file = folder / value
        if file.is_file() and isinstance(_read(str(file)), Mapping):
            return str(file)
    return value


def _read(path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None  # the parser says what is wrong with it


def _warn(name: str, new: str, where: str) -> None:
    warnings.warn(f"model.{name} is model.{new} now, and {where} has the old name", FutureWarning, stacklevel=4)
