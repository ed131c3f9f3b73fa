"""Files that survive crashes: append-only JSON lines that reveal edits, as a ledger is, and files replaced whole."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LedgerError(RuntimeError):
    """A ledger that cannot be read or written; without it no ε can be stated."""


@dataclass(eq=False)
class Journal:
    """A file to which several processes append lines, each with the hash of the line before it. Not thread-safe.

    Attributes:
        path: The file, created if missing; None keeps no file, and lines only change the state.
        take: Takes each line over in order, read or written, or only checks it if `dry`; refuses by a `ValueError`.
        hashes: Hashes of the lines read or written so far.
    """

    path: Path | None
    take: Callable[..., None]
    hashes: list[str] = field(default_factory=list)
    _offset: int = 0
    _descriptor: int = -1
    _denied: OSError | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": -1}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the file, within which `read` reads what others wrote, and `append` writes.

        Raises:
            LedgerError: The file cannot be read or written.
        """
        if self.path is None:
            yield
            return
        try:
            first = self._offset == 0
            if first:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._denied = None
            try:
                # A file that was read once and is gone must not be started again.
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if first else 0), 0o644)
            except OSError as error:  # what cannot be written may still be read
                if not os.path.isfile(self.path):
                    raise
                self._descriptor, self._denied = os.open(self.path, os.O_RDONLY), error
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX if self._denied is None else fcntl.LOCK_SH)
                yield
            finally:
                os.close(self._descriptor)
        except OSError as error:
            raise LedgerError(
                f"the privacy ledger {self.path} cannot be read or written ({error}): nothing may be released. Ask "
                "whoever owns it for permission; before the first run, set `ledger` to a file that can be written"
            ) from error

    def read(self) -> None:
        """Reads what was appended since.

        Raises:
            LedgerError: The file is damaged, or has become shorter.
        """
        if self.path is None:
            return
        if self._offset == 0 and self._denied is None:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:
            raise LedgerError(f"the privacy ledger {self.path} has become shorter; it must only ever grow")
        data = os.pread(self._descriptor, size - self._offset, self._offset)
        if rest := data[data.rfind(b"\n") + 1 :]:
            try:
                whole = isinstance(json.loads(rest), dict)
            except ValueError:
                whole = False
            if whole:  # only the newline is missing, perhaps because of a text editor: the line counts
                os.write(self._descriptor, b"\n")
                data += b"\n"
            else:  # a crash cut this line short before it was synced, so no noise has been drawn for it
                data = data[: -len(rest)]
                os.ftruncate(self._descriptor, self._offset + len(data))
            os.fsync(self._descriptor)
        for line in data.splitlines(keepends=True):
            try:
                entry = json.loads(line)
                if (entry["event"] == "open") != (self._offset == 0):
                    raise ValueError("the first line, and no other, says what the ledger is about")
                if entry.get("prev", "") != (self.hashes or [""])[-1]:
                    raise ValueError("it does not hold the hash of the line before it: one of the two was changed")
                self.take(entry)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise LedgerError(
                    f"the privacy ledger {self.path} is damaged at the line {line[:200]!r} ({error}); what was spent "
                    "cannot be known. Restore the file, or do not publish anything more from this data."
                ) from error
            self._offset += len(line)
            self.hashes.append(hashlib.sha256(line).hexdigest()[:32])

    def append(self, line: dict[str, Any]) -> None:
        """Appends a line and syncs it.

        It is checked as a later reader will, before it is written: one that none could read would make the whole file
        unreadable for good.
        """
        if self.path is not None:
            if self._denied is not None:
                raise self._denied
            data = (json.dumps({**line, "prev": (self.hashes or [""])[-1]}, separators=(",", ":")) + "\n").encode()
            self.take(json.loads(data), dry=True)
            if os.write(self._descriptor, data) != len(data):
                raise OSError("the line was cut short; is the disk full?")
            os.fsync(self._descriptor)
            self._offset += len(data)
            self.hashes.append(hashlib.sha256(data).hexdigest()[:32])
        self.take(line)


def write_atomically(path: str | Path, content: str | bytes | memoryview, *, mode: int = 0o666) -> Path:
    """Writes a file so that a crash leaves either the old content or the new, never a part of it.

    The content is written to a temporary file next to the target, synced, and renamed. A new file has the permissions
    `mode` less the process's `umask`; a replaced file keeps its own.

    Raises:
        OSError: The file could not be written, for example because the disk is full; the old content remains.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
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
