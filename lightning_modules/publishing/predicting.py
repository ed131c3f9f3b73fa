"""Predictions of an exported network for pictures in a folder."""

from __future__ import annotations

from pathlib import Path

import torch

from datamodules.pictures import SUFFIXES, PictureFiles, Preparation, pictures_below, warn_of_dark
from lightning_modules.callbacks.results import table
from lightning_modules.publishing.folder import ExportError, load_student, read_description

_AT_ONCE = 256


@torch.no_grad()
def predict_pictures(folder: str | Path, pictures: str | Path, *, trust_code: bool = False) -> str:
    """Classify all pictures in and below a folder, prepared as the exported network's own data were.

    Args:
        folder: Written by `LightningCLI export`.
        pictures: A folder in any layout; names of folders are not read as classes.
        trust_code: See `load_student`.

    Returns:
        A CSV table: number, file, class, its name, and the probability of each class.

    Raises:
        ValueError: There are no pictures, one cannot be read, or the network takes no squares of 1 or 3 channels.
    """
    config = read_description(Path(folder))
    channels, height, width = config["image_shape"]
    if height != width:
        raise ExportError(f"pictures are prepared as squares, and {folder} takes {height} x {width}: load it by code")
    made, where = config["preprocessing"], Path(pictures)
    prepare = Preparation(size=height, channels=channels, resize=made["resize"], bits=made["bits"])
    files = pictures_below(where)
    if not files:
        raise ValueError(f"--images must be a folder with pictures ({', '.join(sorted(SUFFIXES))}), got {where}")
    warn_of_dark(files)
    network = load_student(folder, trust_code=trust_code)
    images, rows = PictureFiles(files, prepare), list[list[float]]()
    for start in range(0, len(files), _AT_ONCE):
        rows += network(images[start : start + _AT_ONCE] / 127.5 - 1).double().softmax(dim=1).tolist()
    names = [file.relative_to(where).as_posix() for file in files]
    return table(list(zip(range(len(files)), names, rows, strict=True)), config["class_names"])
