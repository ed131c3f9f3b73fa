"""Finished fits by the hash of what decides their outcome: each is made once, by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from privacy.files import write_atomically

__all__ = ["State", "Store"]

State = Literal["done", "failed", "running", "left"]


class Store:
    """Folders of fits.

    A folder is claimed by a lock that the operating system drops when its holder dies, so that nobody has to guess
    whether a claim is still alive.

    Args:
        root: Where the folders lie.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, name: str) -> Path:
        """Where one fit lies."""
        return self.root / name

    def done(self, name: str) -> dict[str, Any] | None:
        """What was noted when it finished, or None."""
        return _read(self.folder(name) / "done.json")

    def failure(self, name: str, *, since: float = 0.0) -> str | None:
        """Why it failed, if it did at or after `since` (seconds since the epoch)."""
        note = _read(self.folder(name) / "failed.json")
        return None if note is None or note["time"] < since else str(note["error"])

    def state(self, name: str, *, since: float = 0.0) -> State:
        """What is known of it; a failure before `since` is forgotten."""
        if self.done(name) is not None:
            return "done"
        if self.failure(name, since=since) is not None:
            return "failed"
        if not self._claim(name).is_file():
            return "left"
        with self.claim(name) as mine:
            return "left" if mine else "running"

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Takes the fit for this process: True, or False where another one holds it. Held until the block ends."""
        path = self._claim(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(handle)

    def _claim(self, name: str) -> Path:
        # Not in the fit's own folder, which loggers expect to be empty when a fit begins.
        return self.root / "claims" / name

    def finish(self, name: str, **note: Any) -> None:
        """Marks it as done, in one step."""
        write_atomically(self.folder(name) / "done.json", json.dumps({"time": time.time(), **note}))
        (self.folder(name) / "failed.json").unlink(missing_ok=True)

    def fail(self, name: str, error: BaseException | str) -> None:
        """Notes why it failed."""
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        note = {"time": time.time(), "error": text, "traceback": trace}
        write_atomically(self.folder(name) / "failed.json", json.dumps(note, indent=2))

    def notes(self) -> list[dict[str, Any]]:
        """What was noted of all that is finished."""
        return [note for path in sorted(self.root.glob("*/done.json")) if (note := _read(path)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return note
