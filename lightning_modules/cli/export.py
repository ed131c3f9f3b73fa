"""`LightningCLI export RUN --to DIR` makes a folder to publish; `predict EXPORT --images FOLDER` classifies by it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from datamodules.pictures import SUFFIXES, PictureFiles, Preparation, pictures_below, warn_of_dark, warn_of_skipped
from lightning_modules.callbacks.results import table, useless
from lightning_modules.publishing import ExportError, export_run, load_student
from lightning_modules.publishing.folder import read_description
from privacy.journal import write_atomically

_AT_ONCE = 256


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
    """Adds the options of an export, named as the arguments of `export_run`."""
    parser.add_argument(
        "--unprotected",
        action="store_true",
        help="Export a student even if its record-level epsilon is infinite; the model card then begins with that.",
    )
    parser.add_argument("--force", action="store_true", help="Replace an earlier export.")
    told = "Hugging Face's identifier of the model's licence, for the model card."
    parser.add_argument("--license", dest="license_name", metavar="LICENSE", default="", help=told)


def export_and_say(run: str | Path, **settings: Any) -> None:
    """Exports a run, see `export_run`, and prints the exported files and the guarantee."""
    done = export_run(run, **settings)
    for name, difference in done.differences.items():
        print(f"{done.folder / name}: logits within {difference:.1e} of the {done.run.role}'s")
    if done.without_onnx:
        print(f"student.onnx was not written: {done.without_onnx}")
    if done.run.record is None:
        print("No record of a finished fit matches this checkpoint: the model card states no accuracy.")
    elif found := useless(done.run.record):
        print(found)
    if not settings.get("license_name"):
        print("The card states no licence, without which nobody may use it: --license apache-2.0 --force adds one.")
    print(f"{done.run.guarantee.headline()} Unit: {done.run.guarantee.unit}.")
    print(f"Read this before you publish it: {done.folder / 'README.md'}", flush=True)


@torch.no_grad()
def predict(args: Sequence[str]) -> None:
    """The command `predict EXPORT --images FOLDER [--to table.csv]`: all pictures, prepared as the network's own data.

    It makes a CSV table: number, file, class, its name, and the probability of each class.

    Raises:
        ValueError: It is no exported folder, there are no pictures, one cannot be read, or the network takes no squares
            of 1 or 3 channels.
    """
    told = "Classify pictures by an exported network. The predict of a run's folder takes its data set instead."
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI predict", description=told)
    parser.add_argument("export", metavar="EXPORT", help="A folder that `LightningCLI export` made.")
    parser.add_argument("--images", required=True, metavar="FOLDER", help="Pictures, in any layout.")
    parser.add_argument("--to", type=Path, metavar="TABLE", help="The CSV file to write. Default: print the table.")
    parser.add_argument("--trust-code", action="store_true", help="Import classes of others, which runs their code.")
    given = parser.parse_args(list(args))
    folder, where = Path(given.export), Path(given.images)
    config = read_description(folder)
    channels, height, width = config["image_shape"]
    if height != width:
        raise ExportError(f"pictures are prepared as squares, and {folder} takes {height} x {width}: load it by code")
    made = config["preprocessing"]
    prepare = Preparation(size=height, channels=channels, resize=made["resize"], bits=made["bits"])
    files = pictures_below(where)
    if not files:
        raise ValueError(f"--images must be a folder with pictures ({', '.join(sorted(SUFFIXES))}), got {where}")
    warn_of_dark(files)
    warn_of_skipped(where)
    network = load_student(folder, trust_code=given.trust_code)
    images, rows = PictureFiles(files, prepare), list[list[float]]()
    for start in range(0, len(files), _AT_ONCE):
        rows += network(images[start : start + _AT_ONCE] / 127.5 - 1).double().softmax(dim=1).tolist()
    names = [file.relative_to(where).as_posix() for file in files]
    text = table(list(zip(range(len(files)), names, rows, strict=True)), config["class_names"])
    if given.to is None:
        print(text, end="")
        return
    write_atomically(given.to, text)
    print(f"{len(files):,} predictions: {given.to}")
