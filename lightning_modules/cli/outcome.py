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

from lightning_modules.callbacks.results import epsilon_of, judged, percent, role
from lightning_modules.named_code import code_named_in, unknown_code
from lightning_modules.training.run import LAST
from privacy.account import BudgetExceeded

#: Methods whose networks no command publishes.
_NEVER_PUBLISHED = ("Teacher", "TeacherEnsemble", "FedAvg", "DirectTraining")
_TEACHERS = ("Teacher", "TeacherEnsemble", "FedAvg", "DPSGDTeacher")
_PRIVATE = "record-level ε: inf: nothing bounds what it reveals about a training record; it must stay private"


def outcome(record: Mapping[str, Any], *, folder: Path, checkpoint: Path | None) -> str:
    """Summarises a finished fit for the user, from its `result.json`."""
    accuracy = f"{percent(record['accuracy'])} of the test split"
    lines = [f"{role(record)}, {record['dataset']}: {accuracy} after {record['steps']:,} steps"]
    if between := record.get("not_finite_between"):
        first, last = between
        lines.append(f"NOT FINITE: weights became NaN or infinite between steps {first:,} and {last:,}: it is useless")
    elif (share := record.get("largest_share", 0)) >= 0.99:
        lines.append(f"COLLAPSED: it predicts one class for {100 * share:.1f} % of the test images")
    lines += judged(record)
    # A method has printed its guarantee already.
    if record["method"] in _TEACHERS:
        lines.append(record.get("statement") or _PRIVATE)
    if checkpoint is not None:
        lines += [f"checkpoint: {checkpoint}", f"test:    {_of_run('test', folder)}"]
        if record["method"] != "DPSGDTeacher":  # its noise was chosen for these epochs
            lines.append(f"resume:  {_of_run('fit', folder)} --trainer.max_epochs N")
        if record["method"] not in _NEVER_PUBLISHED:
            unbounded = ["--unprotected"] if math.isinf(epsilon_of(record)) else []
            settings = record["config"]["model"]["init_args"]
            code = unknown_code((settings.get("student") or settings).get("network"))
            own = [] if code is None else ["--network", code]
            lines.append(f"publish: {_command('export', folder, '--to', 'DIR', *own, *unbounded)}")
    return "\n".join(lines)


def _of_run(command: str, folder: Path) -> str:
    """A command about a run; with its files if they name code of the user's, which no folder may."""
    if code_named_in(folder / "config.yaml") is not None:
        return _command(command, "--config", folder / "config.yaml", "--ckpt_path", folder / LAST)
    return _command(command, *(["--resume"] if command == "fit" else []), folder)


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


def say_how_to_resume(error: BaseException, *, folder: Path, checkpoint: str) -> None:
    """Prints the command that resumes a fit last, below the traceback if there is one.

    Nothing is said of what would end the same fit again: a setting that is refused, or a budget that is spent.
    """
    if isinstance(error, (ValueError, TypeError, BudgetExceeded)) or not Path(checkpoint).is_file():
        return
    line = f"To resume: {_of_run('fit', folder)}"
    if Path(checkpoint).resolve() != (folder / LAST).resolve():
        line = f"To resume: the same command with --ckpt_path {shlex.quote(checkpoint)}"
    if isinstance(error, (SystemExit, KeyboardInterrupt)) or not hasattr(error, "add_note"):
        rank_zero_info(line)
    else:
        error.add_note(line)
