"""What an interrupted fit tells the shell, and the user who wants to resume it."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = ["exit_status", "how_to_resume", "say_how_to_resume"]


def exit_status(error: BaseException) -> int | str | None:
    """The status that a process ends with: 128 and the signal's number where one has ended it, as shells have it.

    Lightning ends with 0 after SIGTERM and with 1 after SIGINT, once callbacks have saved.

    >>> exit_status(KeyboardInterrupt()), exit_status(SystemExit(2))
    (130, 2)
    """
    if isinstance(error, SIGTERMException):
        return 128 + signal.SIGTERM
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.code if isinstance(error, SystemExit) else 1


def how_to_resume(folder: Path | None, checkpoint: Path) -> str:
    """One line for the user: the command that resumes from a checkpoint.

    Args:
        folder: The run's, with its `config.yaml`, where it is known.
        checkpoint: The last one that was written.
    """
    config = None if folder is None else folder / "config.yaml"
    if config is None or not config.is_file():
        return f"To go on from {checkpoint}: the same command with --ckpt_path {shlex.quote(str(checkpoint))}"
    words = ["LightningCLI", "fit", "--config", str(config), "--ckpt_path", str(checkpoint)]
    return f"To go on: {shlex.join(words)}"


def say_how_to_resume(error: BaseException, line: str) -> None:
    """Prints it last: below the traceback if there is one."""
    if isinstance(error, (SystemExit, KeyboardInterrupt)) or not hasattr(error, "add_note"):
        rank_zero_info(line)
    else:
        error.add_note(line)
