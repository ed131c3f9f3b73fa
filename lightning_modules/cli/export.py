"""`LightningCLI export RUN --to DIR`: exports a finished run to a folder that may be published."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_modules.publishing import export_run


def export(args: Sequence[str]) -> None:
    """The command `export RUN --to DIR [--unprotected] [--force]`.

    Raises:
        ExportError: The run must not or cannot be exported as requested. Nothing was written.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI export", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="A run's folder (runs/NAME/version_0), or a checkpoint inside it.")
    parser.add_argument("--to", required=True, metavar="DIR", help="The folder to make.")
    add_export_options(parser)
    parser.add_argument(
        "--network",
        default=None,
        metavar="CLASS_PATH",
        help="The network's class, if a script gave an object or the class is from another package: my.py:Net.",
    )
    options = vars(parser.parse_args(list(args)))
    export_and_say(options.pop("run"), **options)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of an export, named as the arguments of `export_run`."""
    parser.add_argument(
        "--unprotected",
        action="store_true",
        help="Export a student even if its record-level epsilon is infinite; the model card then begins with that.",
    )
    parser.add_argument("--force", action="store_true", help="Replace an earlier export.")
    told = "Hugging Face's identifier of the model's licence, for the model card."
    parser.add_argument("--license", dest="license_name", metavar="LICENSE", default="other", help=told)


def export_and_say(run: str | Path, **settings: Any) -> None:
    """Export a run, see `export_run`, and print the exported files and the guarantee."""
    done = export_run(run, **settings)
    for name, difference in done.differences.items():
        print(f"{done.folder / name}: logits within {difference:.1e} of the {done.run.role}'s")
    if done.without_onnx:
        print(f"student.onnx was not written: {done.without_onnx}")
    if done.run.record is None:
        print("No record of a finished fit matches this checkpoint: the model card states no accuracy.")
    print(f"{done.run.guarantee.headline()} Unit: {done.run.guarantee.unit}.")
    print(f"Read this before you publish it: {done.folder / 'README.md'}", flush=True)
