"""Atomic writing of files."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes | memoryview) -> Path:
    """Writes a file so that a crash leaves either the old content or the new, never a part of it.

    The content is written to a temporary file next to the target, synced, and renamed. A new file has the permissions
    of the process's `umask`; a replaced file keeps its own.

    Raises:
        OSError: The file could not be written, for example because the disk is full; the old content remains.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content.encode() if isinstance(content, str) else content)
            handle.flush()
            os.fsync(handle.fileno())
            if target.exists():
                os.fchmod(handle.fileno(), target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target
