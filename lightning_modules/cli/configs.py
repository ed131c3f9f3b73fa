"""Configuration files and the settings that a command line gives; imports neither Lightning nor torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from privacy.identity import CheckpointError

_CONFIG = ("--config", "-c")
_MEASURES = ("validate", "test", "predict")
_load = get_loader("yaml")
"""As the parser reads numbers: to PyYAML 1e-6 is a text."""


def find_config(path: str) -> str:
    """Returns `path` if it exists, else that file in the installed `sweeps` package, else `path` unchanged."""
    parts = Path(path).parts
    if parts[:1] != ("sweeps",) or Path(path).exists():
        return path
    packaged = Path(str(resources.files("sweeps"))).joinpath(*parts[1:])
    return str(packaged) if packaged.is_file() else path


def find_configs(args: Sequence[str]) -> list[str]:
    """Replaces a run by its configuration and checkpoint, `fit --resume RUN` or `test RUN`, and values of `--config`.

    Raises:
        CheckpointError: There is no such run.
    """
    found = list(args)
    run = None
    if found[:1] == ["fit"] and "--resume" in found[1:-1]:
        run = found.pop(found.index("--resume") + 1)
        found.remove("--resume")
    elif found[1:] and found[0] in _MEASURES and not found[1].startswith("-"):
        run = found.pop(1)
    if run is not None:
        checkpoint = Path(run) if run.endswith(".ckpt") else Path(run, "checkpoints", "last.ckpt")
        config = checkpoint.parent.parent / "config.yaml"
        if missing := [file for file in (config, checkpoint) if not file.is_file()]:
            raise CheckpointError(f"{run} is not the folder of a run, or a checkpoint in it: there is no {missing[0]}")
        found[1:1] = ["--config", str(config), "--ckpt_path", str(checkpoint)]
    for position, one in enumerate(found):
        option, equals, value = one.partition("=")
        if equals and option in _CONFIG:
            found[position] = f"{option}={find_config(value)}"
        elif found[position - 1] in _CONFIG:
            found[position] = find_config(one)
    return found


def missing_teacher(file: str | Path) -> str:
    """Says that a teacher's file does not exist, and how the recipes' are made."""
    return (
        f"teacher checkpoint {file} does not exist: check its path, or make it by its recipe, as teachers/mnist.ckpt "
        "by `LightningCLI fit --config sweeps/teacher_mnist.yaml` (more are in sweeps/methods)"
    )


def check_files(args: Sequence[str]) -> list[str]:
    """Refuses files that are missing or are not YAML, within a second: importing Lightning takes several.

    Returns:
        The arguments, see `find_configs`.

    Raises:
        ValueError: A configuration or the teacher cannot be read.
        CheckpointError: The checkpoint of a command, or a run, is missing.
    """
    if args[0] in ("export", "attack") and args[1:] and args[1][0] != "-" and not Path(args[1]).exists():
        raise CheckpointError(f"RUN must be a run's folder (runs/NAME/version_0), and there is no {args[1]}")
    command, found = args[0], find_configs(args)
    given = {name: value for one in given_in(found) for name, value in one.items()}
    teacher, checkpoint = given.get("model.teacher.path" if command == "fit" else "teacher"), given.get("ckpt_path")
    alone = not {"LOCAL_RANK", "SLURM_PROCID"} & os.environ.keys()  # what one process lacks is said by all together
    if command in ("fit", "distill") and alone and isinstance(teacher, str) and not Path(teacher).exists():
        raise ValueError(missing_teacher(teacher))
    if isinstance(checkpoint, str) and checkpoint != "last" and not Path(checkpoint).is_file():
        raise CheckpointError(f"ckpt_path must be `last` or a checkpoint's file, and {checkpoint} is not a file")
    if command in _MEASURES and checkpoint in (None, "last") and not {"--help", "-h"} & {*args}:
        raise CheckpointError(f"{command} needs a run: LightningCLI {command} runs/dpdfd_digits/version_0")
    return found


def given_in(args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Settings of each configuration and option of a command line, in their order, by dotted names.

    Raises:
        ValueError: A configuration is missing, or is not YAML.
    """
    left = list(args)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if not option.startswith("-"):
            continue
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("--") else ""
        is_file = option in _CONFIG and not value.lstrip().startswith("{")
        try:
            content = _load(Path(value).read_text(encoding="utf-8") if is_file else value)
        except (OSError, ValueError, yaml.YAMLError) as error:
            if is_file:
                raise ValueError(f"{option} {value}: {_reason(error)}") from error
            content = value  # a text, or what the parser refuses
        if option not in _CONFIG:
            content = {option.lstrip("-").replace(".init_args", "").removesuffix(".class_path"): content}
        yield flat(content) if isinstance(content, Mapping) else {}


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    line, column = error.problem_mark.line + 1, error.problem_mark.column + 1
    hint = " (indent with spaces)" if "cannot start any token" in str(error.problem) else ""
    return f"line {line}, column {column} is not YAML: {error.problem}{hint}"


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names, as in options; classes are reduced to their names without modules."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = prefix if name in ("init_args", "dict_kwargs", "class_path") else f"{prefix}.{name}".lstrip(".")
        if isinstance(value, Mapping) and name != "arguments":  # these have no defaults, so a missing one differs
            found |= flat(value, key)
        elif not str(name).startswith("_"):
            found[key] = str(value).rpartition(".")[2] if name == "class_path" else _listed(value)
    return found


def innermost(data: Any) -> Any:
    """The configuration of the data set that others may wrap."""
    while inner := (data.get("init_args") or {}).get("dataset"):
        data = inner
    return data


def _listed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [flat(item) if isinstance(item, Mapping) else _listed(item) for item in value]
    return value
