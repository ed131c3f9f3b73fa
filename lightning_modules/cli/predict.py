"""`LightningCLI predict STUDENT --images FOLDER`: what an exported student says of pictures, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import track

from datamodules.pictures import SUFFIXES, Preparation, pictures_below, read_pictures
from lightning_modules.cli.parsers import OptionParser
from lightning_modules.publishing import load_student
from lightning_modules.publishing.folder import read_description
from lightning_modules.runtime.predictions import table
from privacy.files import write_atomically

_BATCH = 256


@torch.inference_mode()
def predict(args: Sequence[str]) -> None:
    """The command `predict STUDENT --images FOLDER [--to FILE] [--trust-code]`.

    Raises:
        ValueError: No exported folder, no pictures, or one that cannot be read.
    """
    parser = OptionParser(prog="LightningCLI predict", description=__doc__)
    add = parser.add_argument
    add("student", metavar="STUDENT", help="A folder that `export` or `distill` has written.")
    add("--images", required=True, metavar="FOLDER", help="Pictures of any size, in folders or not.")
    add("--to", default="predictions.csv", metavar="FILE", help="The table. Default: predictions.csv.")
    add("--trust-code", action="store_true", help="Import a network class that is not this package's.")
    options = parser.parse_args(list(args))
    student, folder = Path(options.student), Path(options.images)
    files = pictures_below(folder)
    if not files:
        raise ValueError(
            f"--images {folder} holds no pictures, which are files that end in {', '.join(sorted(SUFFIXES))}"
        )
    network = load_student(student, trust_code=options.trust_code)
    config = read_description(student)
    channels, height, width = config["image_shape"]
    if height != width:
        raise ValueError(f"{student} takes images of {height} x {width}, and pictures are made square")
    of_pictures = config["preprocessing"]
    prepare = Preparation(size=height, channels=channels, resize=of_pictures["resize"], bits=of_pictures["bits"])
    rows: list[tuple[int, str, list[float]]] = []
    for start in track(range(0, len(files), _BATCH), description="Predicting", transient=True):
        part = files[start : start + _BATCH]
        images = read_pictures(part, prepare).float() / 127.5 - 1
        names = [file.relative_to(folder).as_posix() for file in part]
        rows += zip(range(start, start + len(part)), names, network(images).softmax(dim=1).tolist(), strict=True)
    write_atomically(Path(options.to), table(rows, named_by="index", class_names=config["class_names"]))
    print(f"{len(rows):,} predictions: {options.to}", flush=True)
