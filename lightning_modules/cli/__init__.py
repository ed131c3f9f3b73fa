"""The command line: `LightningCLI fit --config sweeps/dpdfd_mnist.yaml`."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_modules.cli.errors import expected, message_of

if TYPE_CHECKING:
    from lightning_modules.cli.fit import TranscriptionCLI

__all__ = ["COMMANDS", "main"]

FIT = {
    "fit": "train a teacher or a student",
    "validate": "measure a checkpoint on the validation images",
    "test": "measure a checkpoint on the test split",
    "predict": "write a checkpoint's predictions as a table",
}
"""Commands of Lightning's own CLI."""

COMMANDS = {
    "distill": ("lightning_modules.cli.distill", "train a student of a teacher and export it"),
    "export": ("lightning_modules.cli.export", "export a finished run to a folder for publication"),
    "calibrate": ("lightning_modules.cli.calibrate", "show what a configuration would cost, without training"),
    "pipeline": ("sweeps.runner.pipeline", "run fits in order, each once"),
    "tables": ("sweeps.runner.tables", "run and render the papers' tables"),
    "render": ("sweeps.runner.documents", "write results into documents"),
    "verify": ("lightning_modules.cli.verify", "check an exported folder against its guarantee"),
    "ledger": ("lightning_modules.cli.ledger", "show what was spent on private data"),
    "attack": ("sweeps.attacking.attack", "attack a run's model and report what it reveals"),
    "client": ("lightning_modules.cli.client", "answer a federation's server from the machine with the data"),
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
    command = next((argument for argument in args if not argument.startswith("-")), None)
    asked = "--help" in args or "-h" in args
    if command not in COMMANDS and (command is None or command not in FIT):
        _help(command, asked=asked)
    if command not in COMMANDS:
        from lightning_modules.cli.fit import command_line, show_settings

        if asked and (model := _chosen(args)):
            show_settings(str(command), model)
            return None
        return command_line(args)
    function = getattr(importlib.import_module(COMMANDS[command][0]), command)
    # For commands that make fits, which do not import this module: `run` runs a command, `build` makes the model
    # and the data from the arguments of `fit` without running anything.
    offered = {"run": main, "build": _built}
    wanted = inspect.signature(function).parameters
    function(list(args)[1:], **{name: given for name, given in offered.items() if name in wanted})
    return None


def _built(args: Sequence[str]) -> TranscriptionCLI:
    from lightning_modules.cli.fit import command_line

    return command_line(args, run=False)


def _chosen(args: Sequence[str]) -> str | None:
    """The class that `--model NAME` or `--model=NAME` names."""
    pairs = zip(args, [*args[1:], ""], strict=True)
    given = (
        value if one == "--model" else one.removeprefix("--model=") for one, value in pairs if one.startswith("--model")
    )
    return next((name for name in given if name.isidentifier()), None)


def _help(command: str | None, *, asked: bool) -> None:
    if command is not None:
        raise ValueError(f"there is no command {command}; commands are {', '.join(sorted([*COMMANDS, *FIT]))}")
    parser = argparse.ArgumentParser(prog="LightningCLI", usage="LightningCLI COMMAND [--help] [options]")
    commands = parser.add_argument_group("commands")
    for name, words in {**FIT, **{name: words for name, (_, words) in COMMANDS.items()}}.items():
        commands.add_argument(name, nargs="?", help=words)
    parser.print_help()
    sys.exit(0 if asked else 2)


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
        from lightning_modules.runtime.outcome import exit_status

        sys.exit(exit_status(error))


def _last_words(error: Exception) -> str | int:
    if "torch" not in sys.modules:
        return f"error: {error}"
    from lightning_modules.runtime.runs import first_process
    from privacy.processes import failed_everywhere

    # If all processes fail, one reports the error.
    if failed_everywhere(error) and not first_process():
        return 1
    return "\n".join([f"error: {message_of(error)}", *getattr(error, "__notes__", ())])
