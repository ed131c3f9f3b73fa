"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes | memoryview) -> Path:
    """Writes a file so that a crash leaves either the old content or the new, never half of it.

    It is written beside the target, on the same file system, synced, and then renamed. A new file has the permissions
    that the process gives to its files (`umask`); one that takes another's place keeps that one's.

    Raises:
        OSError: It could not be written, for example because the disk is full; what was there stands.
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
