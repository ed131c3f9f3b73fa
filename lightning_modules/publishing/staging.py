"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from lightning_modules.publishing.description import is_export
from lightning_modules.publishing.errors import ExportError

__all__ = ["check_target", "staged"]


def check_target(target: Path, *, force: bool) -> None:
    """Refuses, before any work, a folder that must not be replaced.

    Args:
        target: The folder.
        force: Whether an earlier export may be.

    Raises:
        ExportError: It holds something else, or an earlier export without `force`.
    """
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir():
        raise ExportError(f"--to must be a folder, and {target} is none")
    if not any(target.iterdir()):
        return
    if not is_export(target):
        raise ExportError(f"--to {target}: it holds files that no export has written. Give another folder")
    if not force:
        raise ExportError(f"--to {target}: it holds an earlier export. Add --force to replace it")


@contextlib.contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Path]:
    """Gives an empty folder beside `target`, which takes its place when the block ends without an error.

    Args:
        target: Where it goes; what was there is kept until the new one is whole.
        force: See `check_target`.

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
