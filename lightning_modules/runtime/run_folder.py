"""The folder of one fit: held by it alone while it runs, and gone again where the fit could not begin."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

__all__ = ["RunFolderError", "claim_folder", "first_process", "folder_of_checkpoint", "own_folder", "storage_failed"]

LOCK = ".fit.lock"
_OF_A_START = ("config.yaml", "metrics.csv", "hparams.yaml", "events.out.tfevents.*", LOCK)
"""What is written before the first step. A folder that holds nothing else is one of a fit that could not begin."""


class RunFolderError(RuntimeError):
    """A folder that a fit must not write to, since another one does, or cannot."""


def first_process() -> bool:
    """Whether this is the process of a fit that writes its files."""
    return not getattr(rank_zero_only, "rank", 0)


def claim_folder(folder: Path) -> list[Path] | None:
    """Makes a folder that nobody else has made.

    Returns:
        The folders that did not exist before, innermost first; None where it exists.
    """
    above = _make(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        return None
    return [folder, *above]


def _make(folder: Path) -> list[Path]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


@contextlib.contextmanager
def own_folder(folder: Path, *, made: Sequence[Path] = ()) -> Iterator[None]:
    """Holds a run's folder for this process until the block ends, however it ends: the system lets go of the lock.

    A folder that was made for a fit, and in which an error leaves nothing but what is written before the first step, is
    removed.

    Args:
        folder: Made where it is missing.
        made: What `claim_folder` has made for it.

    Raises:
        RunFolderError: Another fit holds it, or it cannot be written.
    """
    try:
        made = [*made, *_make(folder)]
        lock = _lock(folder)
    except OSError as error:
        raise RunFolderError(
            f"the run's folder {folder} cannot be written ({error.strerror or error}): set trainer.default_root_dir to "
            "one that can"
        ) from error
    failed = True
    try:
        yield
        failed = False
    finally:
        gone = failed and folder in made and _holds_but_a_start(folder)
        for file in _files_of_a_start(folder) if gone else [folder / LOCK]:
            file.unlink(missing_ok=True)
        os.close(lock)
        if gone:
            with contextlib.suppress(OSError):  # somebody else has begun to use it
                for path in made:
                    path.rmdir()


def _lock(folder: Path) -> int:
    path = folder / LOCK
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise RunFolderError(
                f"{folder} is the folder of a fit that is running ({holder}): wait for it, or set "
                "trainer.default_root_dir to another folder"
            ) from None
        except OSError:
            os.close(handle)
            raise
        # Between the two calls its holder may have ended and removed it.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                break
        os.close(handle)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


def _files_of_a_start(folder: Path) -> list[Path]:
    return [file for pattern in _OF_A_START for file in folder.glob(pattern)]


def _holds_but_a_start(folder: Path) -> bool:
    return set(folder.iterdir()) == set(_files_of_a_start(folder))


def folder_of_checkpoint(checkpoint: Path, *, noted: str | None) -> Path | None:
    """The folder of the run that a checkpoint is of, where it is still there.

    Args:
        checkpoint: `FOLDER/checkpoints/NAME.ckpt`, or a file elsewhere.
        noted: What the checkpoint says.
    """
    beside = checkpoint.resolve().parent.parent
    if checkpoint.resolve().parent.name == "checkpoints" and (beside / "config.yaml").is_file():
        return beside
    return Path(noted) if noted is not None and (Path(noted) / "config.yaml").is_file() else None


def storage_failed(error: OSError) -> bool:
    """Whether nothing more can be written there: the disk is full, a quota is used up, or it may only be read."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
