"""A folder that is published: its description, and how it appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG = "config.json"
FORMAT = "private-model-transcription/student"

#: An absolute path of at least one folder and a name.
_PATH = re.compile(r"(?<![\w.:/<>])(?:/[\w.@+ -]*[\w.@+-])+/(?=[\w.@+-]+)")


class ExportError(ValueError):
    """A run that must not, or cannot, be exported as requested; nothing was written."""


def read_description(folder: Path) -> dict[str, Any]:
    """What `config.json` of a published folder says.

    Raises:
        ExportError: It is none.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if values["format"] != FORMAT or values["format_version"] != 1:
            raise ValueError(f"its format is {values['format']!r}, version {values['format_version']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{folder} is no folder that `LightningCLI export` has written ({error})") from error
    found: dict[str, Any] = values
    return found


def check_target(target: Path, *, force: bool) -> None:
    """Refuses, before any work, a folder that cannot be written or must not be replaced.

    Raises:
        ExportError: It holds something else, or an earlier export without `force`; or no folder can be made there.
    """
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise ExportError(f"--to {target}: {above} is no folder that can be written")
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir():
        raise ExportError(f"--to must be a folder, and {target} is none")
    if not any(target.iterdir()):
        return
    try:
        read_description(target)
    except ExportError as error:
        raise ExportError(f"--to {target}: it holds files that no export has written. Give another folder") from error
    if not force:
        raise ExportError(f"--to {target}: it holds an earlier export. Add --force to replace it")


@contextlib.contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Path]:
    """Gives an empty folder beside `target`, which takes its place when the block ends without an error.

    Raises:
        ExportError: See `check_target`.
    """
    check_target(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    temporary, old = (target.parent / f".{target.name}.{mark}.{kind}" for kind in ("part", "old"))
    temporary.mkdir()
    try:
        yield temporary
        check_target(target, force=force)
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(temporary, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def without_folders(value: Any) -> Any:
    """Text, or plain values of texts, in which absolute paths are shortened to the names of files.

    >>> without_folders("used by /home/me/ledgers/a.jsonl, /tmp/b.jsonl: see <https://arxiv.org/abs/2304.12528>")
    'used by a.jsonl, b.jsonl: see <https://arxiv.org/abs/2304.12528>'
    """
    if isinstance(value, str):
        return _PATH.sub("", value)
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return value
