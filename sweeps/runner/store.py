"""Folders of fits: which are finished, failed or being made, and where an interrupted one goes on.

Pipelines, tables, sweeps and audits keep what they make here. Several processes may share a folder.

**On one machine** a claim is `flock`, which the kernel takes back when the last process that holds it ends, however it
ends. **On a network file system** several machines can share a folder where it passes `flock` on to its server: NFSv4
(Linux turns it into a lock of the server, unless mounted with `local_lock=flock` or `all`), CephFS, GPFS, and Lustre
mounted with `flock`. A dead machine's locks are free when the server's lease runs out (90 s for NFS as it comes).
NFSv3 without `lockd` and Lustre with `localflock` lock each machine by itself: two machines would then make one fit.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from privacy.files import write_atomically

__all__ = ["CLAIMS", "State", "Store"]

CLAIMS = "claims"
"""Folder of the claims, beside those of the fits."""
CHECKPOINTS = ("checkpoints/last.ckpt", "*/*/checkpoints/last.ckpt")
STALE = ("done.json", "begun.json", "result.json", "public/guarantee.json", "public/guarantee.md")

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

    def adopt(self, name: str, former: str, *, digest: str) -> bool:
        """Lets what was made under another name, that of an earlier version's digest, stand for `name` as well.

        Nothing is moved: paths that a child's configuration remembers stay true.

        Args:
            name: The name that it has from now on.
            former: The folder that there may be.
            digest: What its content has from now on.

        Returns:
            Whether there was something to adopt.
        """
        place = self.folder(name)
        if place.exists() or place.is_symlink() or not self.folder(former).is_dir():
            return False
        with suppress(FileExistsError):  # by another process, just now
            place.symlink_to(self.folder(former).resolve().name, target_is_directory=True)
        if (note := self.done(name)) is not None:
            self._write(name, "done.json", {**note, "also": [*note.get("also", []), digest]})
        return True

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
        # Not in the fit's own folder, which loggers expect to be empty when a fit begins. Of an adopted folder it is
        # the claim that earlier versions know.
        place = self.folder(name)
        return self.root / CLAIMS / (place.resolve().name if place.is_symlink() else name)

    def begin(self, name: str, **note: Any) -> None:
        """Notes what is begun, so that its checkpoint is known for what it is."""
        path = self._claim(name)
        write_atomically(path.with_name(f"{path.name}.json"), json.dumps(note))

    def begun(self, name: str) -> dict[str, Any] | None:
        """What was noted when it was begun, or None."""
        path = self._claim(name)
        # Where pipelines of version 1 noted it.
        return _read(path.with_name(f"{path.name}.json")) or _read(self.folder(name) / "begun.json")

    def checkpoint(self, name: str) -> Path | None:
        """What an interrupted fit can go on from: the last that it saved, also in the folder of a W&B run."""
        found = [path for pattern in CHECKPOINTS for path in self.folder(name).glob(pattern) if path.is_file()]
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)

    def clear(self, name: str) -> None:
        """Removes what must not be taken for the work of another configuration."""
        for pattern in (*STALE, *CHECKPOINTS):
            for path in self.folder(name).glob(pattern):
                path.unlink(missing_ok=True)
        path = self._claim(name)
        path.with_name(f"{path.name}.json").unlink(missing_ok=True)

    def finish(self, name: str, **note: Any) -> None:
        """Marks it as done, in one step."""
        self._write(name, "done.json", {"time": time.time(), **note})
        (self.folder(name) / "failed.json").unlink(missing_ok=True)

    def _write(self, name: str, file: str, note: dict[str, Any]) -> None:
        write_atomically(self.folder(name) / file, json.dumps(note))

    def fail(self, name: str, error: BaseException | str) -> None:
        """Notes why it failed."""
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        note = {"time": time.time(), "error": text, "traceback": trace}
        write_atomically(self.folder(name) / "failed.json", json.dumps(note, indent=2))

    def notes(self) -> list[dict[str, Any]]:
        """What was noted of all that is finished, each with its folder as `folder`."""
        paths = [path for path in sorted(self.root.glob("*/done.json")) if not path.parent.is_symlink()]
        return [{**note, "folder": path.parent.name} for path in paths if (note := _read(path)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return note
