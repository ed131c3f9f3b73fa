"""Two sets of characters like none of the shipped priors, as pictures: `python -m datamodules.untuned`."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from datamodules.base import Part
from datamodules.errors import MissingDataError
from datamodules.mnist import MNIST
from datamodules.untuned_characters import Labels, Pixels, cropped, overlaid

__all__ = ["CROPPED_SIZE", "build_untuned", "main"]

#: Height and width in pixels.
CROPPED_SIZE = 16
#: Cropped characters by part: as many as USPS, another set of digits that reach to the edge, has of each.
CROPPED = (7291, 2007)
#: Overlaid characters by part.
OVERLAID = (8000, 2000)

_PARTS: tuple[Part, Part] = ("train", "test")


def build_untuned(
    *,
    root: str | os.PathLike[str],
    to: str | os.PathLike[str],
    seed: int = 0,
    num_cropped: tuple[int, int] = CROPPED,
    num_overlaid: tuple[int, int] = OVERLAID,
    download: bool = False,
) -> Path:
    """Writes both sets for `ImageFolder`, as `SET/PART/CLASS/NUMBER.png`, bright ink on dark ground.

    `cropped`: the first digits of each of MNIST's two parts, cut to their ink and stretched to 16×16 pixels; a
    picture's number is its digit's index in MNIST's file. `overlaid`: characters of 28×28 pixels made of two or three
    digits each, see `overlaid`. What is in a set's `train` is made only of MNIST's training file, and what is in
    `test` only of its test file. All is written, or nothing is.

    Args:
        root: Folder that holds MNIST's, as for `MNIST`.
        to: Folder of the sets. It must not be there yet.
        seed: Of the overlaid characters, from 0 to 2**32 - 1; the cropped ones have nothing random.
        num_cropped: Cropped characters for training and for testing.
        num_overlaid: Overlaid characters for training and for testing.
        download: Whether files of MNIST that are missing are fetched.

    Returns:
        `to`.

    Raises:
        MissingDataError: MNIST's files are not in `root`.
        FileExistsError: `to` is there already.
        ValueError: A setting is outside its range, or MNIST's files hold too few digits.
    """
    place = Path(to).expanduser()
    _check(place, seed=seed, num_cropped=num_cropped, num_overlaid=num_overlaid)
    source = MNIST(root=Path(root).expanduser())
    parts = {part: _digits(source, part, download=download) for part in _PARTS}
    for asked, part in zip(num_cropped, _PARTS, strict=True):
        if asked > len(parts[part][1]):
            raise ValueError(
                f"num_cropped must be at most the {len(parts[part][1])} digits of MNIST's {part} part, got {asked}"
            )
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        for number, part in enumerate(_PARTS):
            digits, labels = parts[part]
            kept = num_cropped[number]
            small = (cropped(digit, size=CROPPED_SIZE) for digit in digits[:kept])
            _write(small, labels[:kept].tolist(), temporary / "cropped" / part)
            images, classes = overlaid(digits, labels, count=num_overlaid[number], seed=seed, draw=1 + number)
            _write(images, classes.tolist(), temporary / "overlaid" / part)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place


def _check(place: Path, *, seed: int, num_cropped: tuple[int, int], num_overlaid: tuple[int, int]) -> None:
    if place.exists():
        raise FileExistsError(f"to must be a folder that is not there yet, got {place}: take it away, or name another")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie between 0 and 2**32 - 1, got {seed}")
    for name, counts in {"num_cropped": num_cropped, "num_overlaid": num_overlaid}.items():
        if len(counts) != 2 or min(counts) < 1:
            raise ValueError(f"{name} must be two numbers of at least 1, for training and for testing, got {counts}")


def _digits(source: MNIST, part: Part, *, download: bool) -> tuple[Pixels, Labels]:
    if download:
        source.fetch(part)
    records = source.read(part)
    return records.images[:, 0].numpy(), records.labels.numpy().astype(np.int64)


def _write(images: Iterable[Pixels], labels: Sequence[int], folder: Path) -> None:
    for label in set(labels):
        (folder / str(label)).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(folder / str(label) / f"{number:05d}.png")


def main(args: Sequence[str] | None = None) -> None:
    """The command `python -m datamodules.untuned --to FOLDER`; what is wrong ends it with a message."""
    parser = argparse.ArgumentParser(
        prog="python -m datamodules.untuned",
        description="Make of MNIST's digits two sets of characters like none of the shipped priors, as pictures for "
        "ImageFolder: TO/cropped, 16x16 pixels, and TO/overlaid, 28x28.",
    )
    parser.add_argument("--root", default="data", help="folder that holds MNIST/raw/*-ubyte (default: %(default)s)")
    parser.add_argument("--to", default="data/untuned", help="folder to make (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the overlaid characters (default: %(default)s)")
    parser.add_argument("--download", action="store_true", help="fetch files of MNIST that are missing")
    options = parser.parse_args(args)
    try:
        place = build_untuned(root=options.root, to=options.to, seed=options.seed, download=options.download)
    except MissingDataError as error:
        sys.exit(
            f"error: --root {options.root} must hold MNIST's files, and {error.folder} lacks "
            f"{', '.join(error.missing)}: name another folder, or give --download"
        )
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    for name, size, (train, test) in (("cropped", CROPPED_SIZE, CROPPED), ("overlaid", 28, OVERLAID)):
        print(f"{place / name}: {train:,} characters of {size}x{size} pixels for training, {test:,} for testing")


if __name__ == "__main__":
    main()
