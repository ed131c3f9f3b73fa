"""Files that survive crashes: append-only JSON lines that reveal edits, as a ledger is, and files replaced whole."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol


class LedgerError(RuntimeError):
    """A ledger that cannot be read or written; without it no ε can be stated."""


class Take(Protocol):
    """Takes a line over, whoever wrote it, or only checks it if `dry`; raises a `ValueError` to refuse it."""

    def __call__(self, line: dict[str, Any], *, dry: bool = False) -> None: ...


class Journal:
    """A file to which several processes append lines, each with the hash of the line before it. Not thread-safe.

    Args:
        path: The file, created if missing.

    Attributes:
        hashes: Hashes of the lines read or written so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hashes: list[str] = []
        self._offset = 0

    @contextlib.contextmanager
    def locked(
        self, *, take: Take, opening: Callable[[], dict[str, Any]]
    ) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Locks the file, reads all of it, and yields a function that appends a line and syncs it.

        A line is checked as a later reader will, before it is written: one that none could read would make the whole
        file unreadable for good.

        Args:
            take: Called with each line in order.
            opening: Returns the first line of a new file, whose event is `open`.

        Raises:
            LedgerError: The file cannot be read or written, is damaged, or has become shorter.
        """
        try:
            first = self._offset == 0
            if first:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            denied: OSError | None = None
            try:
                # A file that was read once and is gone must not be started again.
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if first else 0), 0o644)
            except OSError as error:  # what cannot be written may still be read
                if not os.path.isfile(self.path):
                    raise
                descriptor, denied = os.open(self.path, os.O_RDONLY), error

            def append(line: dict[str, Any]) -> None:
                if denied is not None:
                    raise denied
                self._append(descriptor, line, take)

            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if denied is None else fcntl.LOCK_SH)
                self._read_new(descriptor, take)
                if self._offset == 0:
                    append(opening())
                if first and denied is None:
                    self._sync_folder()
                yield append
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LedgerError(
                f"the privacy ledger {self.path} cannot be read or written ({error}): nothing may be released. Set "
                "`ledger` to a file that can be written, or ask whoever owns this one for permission"
            ) from error

    def _append(self, descriptor: int, line: dict[str, Any], take: Take) -> None:
        chained = {**line, "prev": self._last}
        data = (json.dumps(chained, separators=(",", ":")) + "\n").encode()
        take(json.loads(data), dry=True)
        if os.write(descriptor, data) != len(data):
            raise OSError("the line was cut short; is the disk full?")
        os.fsync(descriptor)
        self._offset += len(data)
        self.hashes.append(_hash(data))
        take(line)

    @property
    def _last(self) -> str:
        return self.hashes[-1] if self.hashes else ""

    def _sync_folder(self) -> None:
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read_new(self, descriptor: int, take: Take) -> None:
        size = os.fstat(descriptor).st_size
        if size < self._offset:
            raise LedgerError(f"the privacy ledger {self.path} has become shorter; it must only ever grow")
        data = os.pread(descriptor, size - self._offset, self._offset)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            if _is_json(data[whole:]):
                # Only the newline is missing, perhaps because of a text editor: the line counts.
                os.write(descriptor, b"\n")
                data += b"\n"
                whole = len(data)
            else:
                # A crash cut this line short before it was synced, so no noise has been drawn for it.
                os.ftruncate(descriptor, self._offset + whole)
            os.fsync(descriptor)
        for line in data[:whole].splitlines(keepends=True):
            self._read_line(line, take)
            self._offset += len(line)
            self.hashes.append(_hash(line))

    def _read_line(self, line: bytes, take: Take) -> None:
        try:
            entry = json.loads(line)
            if (entry["event"] == "open") != (self._offset == 0):
                raise ValueError("the first line, and no other, says what the ledger is about")
            if entry.get("prev", "") != self._last:
                raise ValueError("it does not hold the hash of the line before it: one of the two was changed")
            take(entry)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise LedgerError(
                f"the privacy ledger {self.path} is damaged at the line {line[:200]!r} ({error}); what was spent "
                "cannot be known. Restore the file, or do not publish anything more from this data."
            ) from error


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:32]


def _is_json(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


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
