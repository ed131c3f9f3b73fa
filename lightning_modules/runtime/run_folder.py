"""The folder of one fit, which no other fit writes to while it runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

__all__ = ["RunFolderError", "first_process", "folder_of_checkpoint", "own_folder", "storage_failed"]

LOCK = ".fit.lock"
_OF_A_START = {LOCK, "config.yaml", "hparams.yaml", "metrics.csv"}


class RunFolderError(RuntimeError):
    """A folder that a fit must not write to, since another one does, or cannot."""


def first_process() -> bool:
    """Whether this is the process of a fit that writes its files."""
    return not getattr(rank_zero_only, "rank", 0)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Holds a run's folder for this process until the block ends, however it ends: the system releases the lock.

    A new folder in which an error leaves only what is written before the first step is removed, so that the number of
    the run is free again.

    Args:
        folder: Made where it is missing.

    Raises:
        RunFolderError: Another fit holds it, or it cannot be written.
    """
    new = not folder.exists()
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context((folder / LOCK).open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{folder} is the folder of a fit that is running: wait for it, or set trainer.default_root_dir to "
                "another folder"
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"the run's folder {folder} cannot be written ({error.strerror or error}): set "
                "trainer.default_root_dir to one that can"
            ) from error
        try:
            yield
        except BaseException:
            if new and {path.name for path in folder.iterdir()} <= _OF_A_START:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def storage_failed(error: OSError) -> bool:
    """Whether nothing more can be written there: the disk is full, a quota is used up, or it may only be read."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def folder_of_checkpoint(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint `FOLDER/checkpoints/NAME.ckpt` is of; None for a file elsewhere."""
    beside = checkpoint.resolve().parent.parent
    return beside if checkpoint.resolve().parent.name == "checkpoints" and (beside / "config.yaml").is_file() else None
