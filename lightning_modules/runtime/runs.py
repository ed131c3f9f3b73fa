"""A run's folder and its lock, and the hardware and versions that it ran with."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

_Data = TypeVar("_Data")

LOCK = ".fit.lock"
LAST = Path("checkpoints", "last.ckpt")
"""The last checkpoint in a run's folder, which every fit writes."""
_OF_A_START = {LOCK, "config.yaml", "hparams.yaml", "metrics.csv"}


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of this run; W&B's is shared by all its runs, so the run's id is added.

    For process 0, which writes all files of a run; others may count another version. `trainer.log_dir` would
    communicate, and a process that calls it alone would wait forever.
    """
    return _folder(trainer.logger, trainer.default_root_dir)


def fixed_folder(logger: Logger | None, root: str | Path) -> Path | None:
    """Return the folder of every run with this logger; None if each run gets one of its own when it begins."""
    version = logger.version if isinstance(logger, WandbLogger) else getattr(logger, "_version", "")
    return None if version is None else _folder(logger, root)


def _folder(logger: Logger | None, root: str | Path) -> Path:
    if isinstance(logger, WandbLogger):
        return Path(logger.save_dir or root) / str(logger.name or "wandb") / str(logger.version)
    if isinstance(logger, (CSVLogger, TensorBoardLogger)):
        return Path(logger.log_dir)
    return Path((logger and logger.save_dir) or root)


def datamodule_of(trainer: Trainer) -> Any:
    """Return the data module, or None. As for `callbacks`, type checkers do not see Lightning's attribute."""
    return getattr(trainer, "datamodule", None)


def datamodule_as(kind: type[_Data], trainer: Trainer, needed: str) -> _Data:
    """Return the data module if it is of this kind, otherwise raise a ValueError that begins with `needed`."""
    data = datamodule_of(trainer)
    if not isinstance(data, kind):
        raise ValueError(f"{needed}, got {type(data).__name__}")
    return data


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer."""
    found: list[Callback] = getattr(trainer, "callbacks", [])
    return found


def is_dev_run(trainer: Trainer) -> bool:
    """Whether this is `fast_dev_run`, which writes nothing."""
    return bool(getattr(trainer, "fast_dev_run", False))


def hardware() -> str:
    """Describe the processor and its threads, or the GPUs."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    name = next(names, platform.processor() or platform.machine())
    return f"CPU {name}, {torch.get_num_threads()} thread(s) of {os.cpu_count()} core(s)"


def versions() -> dict[str, str]:
    """Versions of Python and the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in ("torch", "torchvision", "lightning", "opacus", "private-model-transcription"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def commit() -> str:
    """Commit of the running code, with `-dirty` if it was changed since; "unknown" outside a checkout."""
    here = Path(sys.modules[__name__].__file__ or ".").resolve().parent
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.stdout.strip() or "unknown"


class RunFolderError(RuntimeError):
    """A fit cannot write to its folder, or must not, since another fit does."""


def first_process() -> bool:
    """Whether this is the process of a fit that writes its files."""
    return not getattr(rank_zero_only, "rank", 0)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Locks a run's folder for this process until the block ends; the system releases the lock however it ends.

    If an error ends the block before the first step, a new folder is removed, so that its version can be used again.

    Raises:
        RunFolderError: Another fit holds the folder, or it cannot be written.
    """
    new = not folder.exists()
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context((folder / LOCK).open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{folder} is the folder of a fit that is running: wait, or set another trainer.default_root_dir"
            ) from None
        except OSError as error:
            raise RunFolderError(f"the run's folder {folder} cannot be written ({error.strerror or error})") from error
        try:
            yield
        except BaseException:
            if new and {path.name for path in folder.iterdir()} <= _OF_A_START:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def folder_of_checkpoint(checkpoint: Path) -> Path | None:
    """Return the run folder of a checkpoint `FOLDER/checkpoints/NAME.ckpt`; None for a file elsewhere."""
    beside = checkpoint.resolve().parent.parent
    return beside if checkpoint.resolve().parent.name == "checkpoints" and (beside / "config.yaml").is_file() else None
