"""One hash for all that decides the outcome of a fit, whether a pipeline, a table or a sweep asks for it.

It is taken of *values*: configuration files are parsed, so that a comment, white space or the order of keys makes
nothing run again, and be charged again. What a file refers to (`model: networks.yaml`) is parsed in its place, later
files and dotted settings are applied to earlier ones, and the digests of the parents are part of it.

Two configurations that differ must never have one digest: a fit would be taken for another. So what an override does
is only worked out where it is plain: a value in place of a value. Wherever jsonargparse's own rules would have to be
repeated (another class over one with arguments, lists that are appended to) both sides are kept. At worst, equal
configurations that are written differently are two fits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.runtime.paths import find_config

__all__ = ["VERSION", "digest", "digest_of_pipeline_1", "digest_of_table_1", "effective", "hashed"]

VERSION = 2
"""Of the digest. Version 1 hashed the text of a pipeline's files, and the command line alone of a sweep."""

_GROUPS = {
    *("model", "data", "trainer", "init_args", "images", "optimizers", "gradient_targets", "label_targets"),
    *("generator_loss", "tangent_normal", "stages", "generator_training", "generator_phase", "vae_phase"),
    *("query_phase", "student_phase"),
}
"""Mappings of which a later file changes single keys."""

_CLASSES = {"annotator", "dataset", "generator", "network", "prior", "student", "teacher_network"}
"""Settings that are classes, whose file may hold arguments alone."""

_MOST_BYTES = 1 << 20
"""Of a file of settings; what is larger holds weights or data."""


def hashed(content: Any) -> str:
    """SHA-256 of plain values, as 64 hexadecimal digits; the order of keys does not count."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def digest(
    *,
    arguments: Sequence[str] = (),
    config: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
) -> str:
    """The digest of one fit.

    Args:
        arguments: What the command line begins with; its `--config FILE` and `--name=value` are read as such.
        config: Configuration files, later ones override earlier ones.
        settings: Dotted names that override the files, in this order.
        parents: Digests of the fits that it builds on, by the name it has for them.

    Raises:
        OSError: A configuration file cannot be read.
    """
    words, files, overrides = _parts(arguments)
    given = [*overrides, *(settings or {}).items()]
    content = {
        "version": VERSION,
        "command": words,
        "settings": effective([*files, *config], given),
        "parents": dict(parents or {}),
    }
    return hashed(content)


def effective(config: Sequence[str], overrides: Iterable[tuple[str, Any]]) -> Any:
    """Configuration files, in order, with dotted overrides applied to them, as plain values."""
    found: Any = {}
    for path in config:
        found = _merged(found, _parsed(find_config(path), ()), group=True)
    for name, value in overrides:
        value = _expanded(_as_passed(value), Path(), (), name=name.rpartition(".")[2])
        found = _overridden(found, name.split("."), value)
    return found


def digest_of_table_1(config: Sequence[str], settings: Mapping[str, Any], parents: Mapping[str, str]) -> str:
    """Version 1 of a table's fit: parsed files, parameters, digests of the parents. To know its folders by."""
    return hashed([[_read(find_config(path)) for path in config], dict(settings), dict(parents)])


def digest_of_pipeline_1(config: Sequence[str], settings: Mapping[str, Any], made: Mapping[str, str]) -> str:
    """Version 1 of a pipeline's fit: text of its files, settings, which making of each parent. To know it by."""
    texts = [Path(find_config(path)).read_text(encoding="utf-8") for path in config]
    return hashed([texts, dict(settings), dict(made)])


def _parts(arguments: Sequence[str]) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Words, files and overrides of a command line.

    `--name value` is `--name=value`. Where a file follows an override, their order counts, and stays among the words.
    """
    words: list[str] = []
    files: list[str] = []
    overrides: list[tuple[str, str]] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument in ("--config", "-c") and left:
            path = left.pop(0)
        elif argument.startswith("--config="):
            path = argument.removeprefix("--config=")
        elif argument.startswith("--") and "=" in argument:
            name, value = argument[2:].split("=", 1)
            overrides.append((name, value))
            continue
        elif argument.startswith("--") and left and _is_value(left[0]):
            overrides.append((argument[2:], left.pop(0)))
            continue
        else:
            words.append(argument)
            continue
        if overrides:
            words.append(hashed([overrides, path]))
        files.append(path)
    return words, files, overrides


def _is_value(argument: str) -> bool:
    """Whether it is the value of the flag before it, and no flag itself; `-1` is a value."""
    return not argument.startswith("-") or bool(re.fullmatch(r"-\.?[\d.]\S*|-", argument))


@cache
def _text(path: str, changed: int) -> Any:
    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))


def _read(path: str) -> Any:
    return _text(path, Path(path).stat().st_mtime_ns)


def _parsed(path: str, above: tuple[Path, ...]) -> Any:
    """A file's values, those of the files that it names in their place."""
    file = Path(path).resolve()
    return _expanded(_read(str(file)), file.parent, (*above, file))


def _expanded(value: Any, folder: Path, above: tuple[Path, ...], *, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {str(key): _expanded(item, folder, above, name=str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expanded(item, folder, above, name=name) for item in value]
    if isinstance(value, str) and value:
        for candidate in (folder / value, Path(find_config(value))):
            if _is_file(candidate) and candidate.resolve() not in above and _holds_settings(candidate, name=name):
                return {"file": _parsed(str(candidate), above)}
    return value


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or none at all
        return False


def _holds_settings(file: Path, *, name: str) -> bool:
    """Whether the parser would read a file in the place of the setting that names it: YAML, or one of a class or group.

    A record that a fit writes is neither: it must not change the digest of the fit that wrote it.
    """
    if file.suffix in (".yaml", ".yml"):
        return True
    if file.stat().st_size > _MOST_BYTES:
        return False
    try:
        content = _read(str(file))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(content, Mapping) and ("class_path" in content or name in _GROUPS or name in _CLASSES)


def _as_passed(value: Any) -> Any:
    """The value of an override: what is one argument on the command line is one value."""
    if not isinstance(value, str):
        return value
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return read if json.dumps(read) == value else value


def _both(old: Any, new: Any) -> dict[str, Any]:
    return {"was": old, "now": new}


def _merged(old: Any, new: Any, *, group: bool = False) -> Any:
    if old == new:
        return new
    if not isinstance(old, Mapping):
        # Arguments without a class are for the class that was named before.
        bare = isinstance(new, Mapping) and "class_path" not in new and isinstance(old, str)
        return _both(old, new) if bare else new
    of_one_class = "class_path" in old and old.get("class_path") == new.get("class_path") if _maps(new) else False
    if not _maps(new) or not (group or of_one_class) or old.get("class_path") != new.get("class_path"):
        return _both(old, new)
    if any(key.endswith("+") for key in (*old, *new)):
        return _both(old, new)
    shared = {key: _merged(old[key], new[key], group=key in _GROUPS) for key in old.keys() & new.keys()}
    return {**old, **new, **shared}


def _maps(value: Any) -> bool:
    return isinstance(value, Mapping)


def _overridden(tree: Any, path: Sequence[str], value: Any) -> Any:
    """`tree` with one dotted name set; arguments of a class may be named without `init_args`."""
    name, *rest = path
    if tree is None:
        tree = {}
    if isinstance(tree, str):
        tree = {"class_path": tree}
    if not isinstance(tree, Mapping):
        return _both(tree, {".".join(path): value})
    if "class_path" in tree and name not in ("class_path", "init_args", "dict_kwargs"):
        return {**tree, "init_args": _overridden(tree.get("init_args"), path, value)}
    if name.endswith("+"):
        return _both(tree, {name: value})
    if rest:
        return {**tree, name: _overridden(tree.get(name), rest, value)}
    return {**tree, name: _merged(tree[name], value) if name in tree else value}
