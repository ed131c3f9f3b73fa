"""Messages after a fit: its result, ε, folder and the commands to continue with, and how to resume one."""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_modules.callbacks.results import epsilon_of, role
from lightning_modules.named_code import unknown_code

#: Methods whose networks no command publishes.
_NEVER_PUBLISHED = ("Teacher", "TeacherEnsemble", "FedAvg", "DirectTraining")
_TEACHERS = ("Teacher", "TeacherEnsemble", "FedAvg", "DPSGDTeacher")
_PRIVATE = "record-level ε: inf: nothing bounds what it reveals about a training record; it must stay private"


def outcome(record: Mapping[str, Any], *, folder: Path, checkpoint: Path | None) -> str:
    """Summarise a finished fit for the user, from its `result.json`."""
    accuracy = f"{100 * record['accuracy']:.2f} % of the test split"
    lines = [f"{role(record)}, {record['dataset']}: {accuracy} after {record['steps']:,} steps"]
    if (share := record.get("largest_share", 0)) >= 0.99:
        lines.append(f"COLLAPSED: it predicts one class for {100 * share:.1f} % of the test images")
    # A method has printed its guarantee already.
    if record["method"] in _TEACHERS:
        lines.append(record.get("statement") or _PRIVATE)
    if checkpoint is not None:
        lines.append(f"checkpoint: {checkpoint}")
        config = folder / "config.yaml"
        if config.is_file():
            lines.append(f"test:    {_command('test', '--config', config, '--ckpt_path', checkpoint)}")
            if record["method"] != "DPSGDTeacher":  # its noise was chosen for these epochs
                more = _command("fit", "--config", config, "--ckpt_path", checkpoint)
                lines.append(f"resume:  {more} --trainer.max_epochs N")
        if record["method"] not in _NEVER_PUBLISHED:
            unbounded = ["--unprotected"] if math.isinf(epsilon_of(record)) else []
            settings = record["config"]["model"]["init_args"]
            code = unknown_code((settings.get("student") or settings).get("network"))
            own = [] if code is None else ["--network", code]
            lines.append(f"publish: {_command('export', folder, '--to', 'DIR', *own, *unbounded)}")
    return "\n".join(lines)


def _command(*words: object) -> str:
    return shlex.join(["LightningCLI", *map(str, words)])


def exit_status(error: BaseException) -> int | str | None:
    """Exit status of a process: 128 plus the signal's number if a signal ended it, as in shells.

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
    """Return one line for the user, with the command that resumes from a checkpoint."""
    config = None if folder is None else folder / "config.yaml"
    if config is None or not config.is_file():
        return f"To resume from {checkpoint}: the same command with --ckpt_path {shlex.quote(str(checkpoint))}"
    return f"To resume: {_command('fit', '--config', config, '--ckpt_path', checkpoint)}"


def say_how_to_resume(error: BaseException, line: str) -> None:
    """Prints the line last, below the traceback if there is one."""
    if isinstance(error, (SystemExit, KeyboardInterrupt)) or not hasattr(error, "add_note"):
        rank_zero_info(line)
    else:
        error.add_note(line)
