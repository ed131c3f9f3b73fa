"""Files that a command line names: those that come with the installed package, and what is said of one that is missing.

Nothing heavy is imported here: a mistyped name is answered at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

_CONFIG = ("--config", "-c")
#: Options with a teacher's file, by command.
_TEACHERS = {"fit": ("--model.teacher", "--model.teacher.path"), "distill": ("--teacher",)}
#: Commands whose first argument is a file or a folder.
_OF_A_PATH = ("attack", "export", "pipeline", "predict", "test", "validate", "verify")
_LFS = b"version https://git-lfs"


def find_config(path: str) -> str:
    """`path` where it exists; else the file of that name under the installed `sweeps` package; else `path` as it is."""
    packaged = _packaged(path)
    return path if packaged is None or Path(path).exists() or not packaged.is_file() else str(packaged)


def find_configs(args: Sequence[str]) -> list[str]:
    """Command-line arguments with the values of `--config` looked up by `find_config`.

    Raises:
        ValueError: A file that does not exist.
    """
    found = list(args)
    for position, value in _values(args, _CONFIG):
        option = args[position].removesuffix(value)
        if value.endswith((".yaml", ".yml", ".json")) and "{" not in value:
            found[position] = f"{option}{_existing(value, named='--config')}"
    return found


def check_paths(args: Sequence[str]) -> None:
    """Refuses files that are not there, and teachers that are none, before what takes seconds to import.

    Raises:
        ValueError: With the nearest name that is there.
    """
    find_configs(args)
    command, first = [*args, "-", "-"][:2]
    if command in _OF_A_PATH and not first.startswith("-"):
        _existing(first, named=command)
    if not {"--help", "-h", "--print_config"} & {*args}:
        for _, value in _values(args, _TEACHERS.get(command, ())):
            if value != "null" and "{" not in value and (wrong := wrong_with_teacher(Path(value))):
                raise ValueError(wrong.replace("--model.teacher", "--teacher") if command == "distill" else wrong)


def of_run(args: Sequence[str]) -> list[str]:
    """Arguments with `--config` and `--ckpt_path` in place of RUN, a run's folder or a checkpoint inside it.

    Raises:
        ValueError: `test` or `validate` of another folder or file; `predict` may be of an exported one.
    """
    command, given, *rest = [*args, "-", "-"][: max(2, len(args))]
    if command not in ("test", "validate", "predict") or given.startswith("-"):
        return list(args)
    checkpoint = Path(given) if Path(given).is_file() else Path(given, "checkpoints", "last.ckpt")
    config = checkpoint.resolve().parent.parent / "config.yaml"
    if checkpoint.is_file() and config.is_file():
        return [command, "--config", str(config), "--ckpt_path", str(checkpoint), *rest]
    if command == "predict":
        return list(args)
    raise ValueError(
        f"{command} {given}: there is no checkpoint of a run with its config.yaml. Give the run's folder, such as "
        "runs/dpdfd_digits/version_0, or --config and --ckpt_path"
    )


def wrong_with_teacher(file: Path) -> str | None:
    """What is wrong with a teacher's file at first sight: it is missing, or text, which no weights are."""
    if not file.is_file():
        return f"teacher checkpoint {file} does not exist{_near(str(file))}. {_recipe(file)}"
    with file.open("rb") as opened:
        beginning = opened.read(512)
    if beginning.startswith(_LFS):
        return f"teacher {file} is no checkpoint but a Git LFS pointer: run `git lfs pull`"
    is_text = all(byte >= 32 or byte in b"\t\n\r\f" for byte in beginning)
    return f"teacher {file} is no checkpoint but a text file: give its weights" if is_text else None


def _values(args: Sequence[str], options: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Values of some options, each with the position of the argument that it is in."""
    for position, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        if option in options and equals:
            yield position, value
        elif option in options and position + 1 < len(args):
            yield position + 1, args[position + 1]


def _existing(path: str, *, named: str) -> str:
    found = find_config(path)
    if Path(found).exists():
        return found
    raise ValueError(f"{named} {path}: there is no such file or folder{_near(path)}")


def _packaged(path: str) -> Path | None:
    """Where the installed package has a file of `sweeps/`, if it has it."""
    parts = Path(path).parts
    return Path(str(resources.files("sweeps"))).joinpath(*parts[1:]) if parts[:1] == ("sweeps",) else None


def _near(path: str) -> str:
    """` (did you mean X?)`, of what lies in the same folder, or nothing."""
    for place in (Path(path), _packaged(path)):
        if place is not None and place.parent.is_dir():
            found = difflib.get_close_matches(place.name, os.listdir(place.parent), n=1)
            if found:
                return f" (did you mean {Path(path).with_name(found[0])}?)"
    return ""


def _recipe(file: Path) -> str:
    """How a missing teacher is made."""
    name = f"dp_teacher_{file.stem[:-3]}.yaml" if file.stem.endswith("_dp") else f"teacher_{file.stem}.yaml"
    made = (one for one in (f"sweeps/{name}", f"sweeps/methods/{name}") if Path(find_config(one)).is_file())
    recipe = next(made, "sweeps/teacher_<dataset>.yaml (sweeps/methods has those of ensembles)")
    return f"Make it with `LightningCLI fit --config {recipe}`, or set --model.teacher to your own file"
