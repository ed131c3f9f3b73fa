"""The command line: `LightningCLI fit --config sweeps/dpdfd_mnist.yaml`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_modules.cli.configs import check_files
from lightning_modules.cli.errors import exit_status, expected, message_of
from privacy.checks import did_you_mean

if TYPE_CHECKING:
    from lightning_modules.cli.fit import TranscriptionCLI

__all__ = ["COMMANDS", "main"]

FIT = {
    "fit": "train a teacher or a student",
    "validate": "measure a checkpoint on the validation images",
    "test": "measure a checkpoint on the test split",
    "predict": "write predictions as a table: a checkpoint's, or an export's of pictures (EXPORT --images FOLDER)",
}
"""Commands of Lightning's own CLI."""

COMMANDS = {
    "distill": ("lightning_modules.cli.distill", "train a student of a teacher and export it"),
    "export": ("lightning_modules.cli.export", "export a finished run to a folder for publication"),
    "calibrate": ("lightning_modules.cli.calibrate", "show what a configuration would cost, without training"),
    "pipeline": ("sweeps.runner.pipeline", "run fits in order, each once"),
    "tables": ("sweeps.runner.tables", "run the papers' tables, or your own"),
    "sweep": ("sweeps.runner.sweep", "run a W&B sweep's file without W&B's server"),
    "render": ("sweeps.runner.documents", "write results into tables' pages and documents"),
    "verify": ("lightning_modules.cli.verify", "check an exported folder against its guarantee"),
    "ledger": ("lightning_modules.cli.ledger", "show what was spent on private data"),
    "attack": ("sweeps.attacking.attack", "attack a run's model and report what it reveals"),
}
"""Modules, each with a function named like the command, and help texts. Modules are imported on first use."""


def main(args: Sequence[str] | None = None) -> TranscriptionCLI | None:
    """Runs one command in this process and lets its errors through; entry point of the console script.

    Args:
        args: Command-line arguments; None takes those of the process, and ends it with a message instead of a traceback
            if an error is expected.

    Raises:
        ValueError: The command does not exist.
    """
    if args is None:
        _of_process()
        return None
    args = list(args)
    if not args or args[0].startswith("-"):
        print("usage: LightningCLI COMMAND [--help] [options]\n\ncommands:")
        for name, words in {**FIT, **{name: words for name, (_, words) in COMMANDS.items()}}.items():
            print(f"  {name:12}{words}")
        sys.exit(0 if {"--help", "-h"} & {*args} else 2)
    command, known = args[0], dict.fromkeys([*FIT, *COMMANDS])
    if command not in known:
        raise ValueError(f"there is no command {command} among {', '.join(known)}{did_you_mean(command, known)}")
    # An export, and no run.
    if command == "predict" and any(one[:8] == "--images" or Path(one, "config.json").is_file() for one in args):
        importlib.import_module("lightning_modules.cli.export").predict(args[1:])
        return None
    found = check_files(args)
    if command in COMMANDS:
        function = getattr(importlib.import_module(COMMANDS[command][0]), command)
        # For commands that make fits: `run` runs a command, `build` only makes the objects that a fit's arguments name.
        wanted, offered = inspect.signature(function).parameters, dict[str, Any](run=main, build=built)
        function(found[1:], **{name: given for name, given in offered.items() if name in wanted})
        return None
    from lightning_modules.cli.fit import TranscriptionCLI, show_settings

    if {"--help", "-h"} & {*args} and show_settings(found):
        return None
    # jsonargparse keeps its last parser, and with it the model, in the current context: use a separate one.
    # Its arguments are the user's: the configuration of a run is trusted less.
    return copy_context().run(TranscriptionCLI, args)


def built(args: Sequence[str]) -> Any:
    """Makes the objects that a fit's arguments name, without running it."""
    from lightning_modules.cli.fit import TranscriptionCLI

    return copy_context().run(TranscriptionCLI, args, run=False)


def _of_process() -> None:
    given = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(given) < len(sys.argv) - 1
    if debug:
        os.environ["JSONARGPARSE_DEBUG"] = "true"  # makes its errors show their origin as well
    try:
        main(given)
    except Exception as error:
        if debug or not expected(error):
            raise
        sys.exit(_last_words(error))
    except (KeyboardInterrupt, SystemExit) as error:
        if type(error) is SystemExit and error.__context__ is None:
            raise
        sys.exit(exit_status(error))


def _last_words(error: Exception) -> str | int:
    if "torch" not in sys.modules:
        return f"error: {error}"
    from lightning_modules.training.run import first_process
    from privacy.processes import failed_everywhere

    # If all processes fail, one reports the error.
    if failed_everywhere(error) and not first_process():
        return 1
    return "\n".join([f"error: {message_of(error)}", *getattr(error, "__notes__", ())])
