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

__all__ = ["RENAMED", "upgrade_arguments", "upgrade_settings", "upgraded_checkpoint"]

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
    name: f"generator_terms.{name}"
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
    """Settings of a class under the names of today.

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


def upgrade_arguments(args: Sequence[str]) -> list[str]:
    """Arguments of the command line under the names of today.

    A configuration file that holds an older name is handed on by its content; flags are renamed one by one.
    """
    upgraded = list(args)
    class_name = ""
    for position, path in _configs(upgraded):
        content = _read(path)
        model = content.get("model") if isinstance(content, dict) else None
        if isinstance(model, str):
            class_name = _class_name(model)
        elif isinstance(model, dict):
            class_name = _class_name(str(model.get("class_path", class_name)))
            renamed = {**model}
            key = "init_args" if isinstance(model.get("init_args"), dict) else None
            given = model[key] if key else {name: value for name, value in model.items() if name != "class_path"}
            settings = upgrade_settings(class_name, given, where=path)
            if settings != given:
                renamed = {**model, key: settings} if key else {**_only_class(model), **settings}
                text = json.dumps({**content, "model": renamed}, default=str)
                upgraded[position] = f"--config={text}" if upgraded[position].startswith("--config=") else text
    for position, argument in enumerate(upgraded):
        name, equals, value = argument.partition("=")
        if name in ("--model", "--model.class_path"):
            class_name = _class_name(value if equals else (upgraded[position + 1 : position + 2] or [""])[0])
    names = RENAMED.get(class_name, {})
    for position, argument in enumerate(upgraded):
        if argument.startswith("--model."):
            following = upgraded[position + 1] if position + 1 < len(upgraded) else ""
            upgraded[position] = _renamed_flag(argument, following, names)
    return upgraded


def upgraded_checkpoint(path: str | Path | IO[bytes]) -> str | Path | IO[bytes]:
    """A checkpoint whose settings have the names of today: itself, or a copy in memory where it is of an older version.

    Args:
        path: Of the file; what is no file, or cannot be read as plain values, comes back as it is.
    """
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        return path
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return path  # whoever loads it says why it cannot be read
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


def _only_class(model: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name == "class_path"}


def _configs(args: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Positions and paths of the configuration files among arguments."""
    for position, argument in enumerate(args):
        if argument.startswith("--config="):
            yield position, argument.removeprefix("--config=")
        elif argument in ("--config", "-c") and position + 1 < len(args):
            yield position + 1, args[position + 1]


def _read(path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None  # the parser says what is wrong with it


def _renamed_flag(argument: str, following: str, names: Mapping[str, str]) -> str:
    flag, equals, value = argument.partition("=")
    prefix = "--model.init_args." if flag.startswith("--model.init_args.") else "--model."
    first, dot, rest = flag.removeprefix(prefix).partition(".")
    new = names.get(first)
    given = value if equals else following
    if new is None or (first == "images" and (dot or given.lstrip().startswith("{"))):
        return argument
    _warn(first, new, argument)
    return f"{prefix}{new}{dot}{rest}{equals}{_VALUES.get((new, value), value)}"


def _warn(name: str, new: str, where: str) -> None:
    warnings.warn(f"model.{name} is model.{new} now, and {where} has the old name", FutureWarning, stacklevel=3)
