"""Two sets of characters like none of the shipped priors, made of MNIST's digits: `python -m datamodules.untuned`."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from datamodules.base import Part
from datamodules.mnist import MNIST

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

NUM_CLASSES = 10
#: Ways in which a class of overlaid characters is written, as a and A are.
FORMS = 2
#: Name, height and width in pixels, characters for training and testing: as many cropped ones as USPS, other digits
#: that reach to the edge, has of each.
SETS = (("cropped", 16, (7291, 2007)), ("overlaid", 28, (8000, 2000)))

_PARTS: tuple[Part, Part] = ("train", "test")
_MOST_PIECES, _SIDE = 3, 28
#: Grey values above it count as ink. Below are the ends of soft edges, which would leave a border that looks empty.
_INK = 32
#: A box is at least this wide for its height, and this high for its width: a 1 stays a bar in place of a plain square.
_LEAST_ASPECT = 1 / 3
# Of a recipe. Lengths in pixels, angles in degrees.
_SIDES, _TURN, _OFFSET = (9.0, 19.0), 90.0, (4.0, 7.0)
# Of one character, about its recipe; of the side, in degrees, in pixels.
_SIDE_JITTER, _TURN_JITTER, _PLACE_JITTER = 0.1, 8.0, 1.5


class Piece(NamedTuple):
    """One digit of a recipe: its class, its ink box before it is turned, degrees counterclockwise, and its middle."""

    digit: int
    width: float
    height: float
    turn: float
    x: float
    y: float


def build_untuned(*, root: str | os.PathLike[str], to: str | os.PathLike[str]) -> Path:
    """Writes both sets for `ImageFolder`, as `SET/PART/CLASS/NUMBER.png`, bright ink on dark ground; gives back `to`.

    `cropped`: the first digits of each of MNIST's two parts, cut to their ink and stretched to 16×16 pixels.
    `overlaid`: characters of 28×28 pixels made of two or three digits each, see `overlaid`. What is in a set's `train`
    is made only of MNIST's training file, and what is in `test` only of its test file.

    Raises:
        MissingDataError: MNIST's files are not in `root`.
        FileExistsError: `to` is there already.
    """
    place, source = Path(to).expanduser(), MNIST(root=root)
    parts = [source.read(part) for part in _PARTS]
    place.mkdir(parents=True)
    (first, size, num_cropped), (second, _, num_overlaid) = SETS
    for number, (part, records) in enumerate(zip(_PARTS, parts, strict=True)):
        digits, labels = records.images[:, 0].numpy(), records.labels.numpy()
        kept = num_cropped[number]
        _write([cropped(digit, size=size) for digit in digits[:kept]], labels[:kept], place / first / part)
        images, classes = overlaid(digits, labels, count=num_overlaid[number], draw=1 + number)
        _write(images, classes, place / second / part)
    return place


def _write(images: Sequence[Pixels] | Pixels, labels: Labels, folder: Path) -> None:
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{number:05d}.png")


def cropped(digit: Pixels, *, size: int) -> Pixels:
    """Cuts a digit (H, W), bright on dark ground, to its ink and stretches it to fill a square, `size` pixels a side.

    It is stretched up to three times more one way than the other, by Pillow's bilinear filter, which averages when it
    shrinks; a narrower digit is in the middle. One without ink is scaled as it is.
    """
    return np.asarray(_inked(digit).resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)


def _recipes() -> list[list[Piece]]:
    """How overlaid characters are made: `FORMS` recipes of each class, one after the other, of other digits each.

    Each of a recipe's two or three digits stands in a different direction from the middle.
    """
    draw = _draws(0)
    made: list[list[Piece]] = []
    while len(made) < FORMS * NUM_CLASSES:
        count = 2 + int(2 * draw.random_sample())
        digits = np.argsort(draw.random_sample(NUM_CLASSES))[:count].tolist()
        first = 2 * math.pi * draw.random_sample()
        rows = draw.random_sample((count, 4)).tolist()
        if any({piece.digit for piece in other} == set(digits) for other in made):
            continue
        pieces = []
        for number, (digit, (wide, high, turn, far)) in enumerate(zip(digits, rows, strict=True)):
            angle, offset = first + 2 * math.pi * number / count, _between(_OFFSET, far)
            x, y = (_SIDE / 2 + offset * part for part in (math.cos(angle), math.sin(angle)))
            width, height = _between(_SIDES, wide), _between(_SIDES, high)
            pieces.append(Piece(digit, width, height, _between((-_TURN, _TURN), turn), x, y))
        made.append(pieces)
    return made


def overlaid(digits: Pixels, labels: Labels, *, count: int, draw: int) -> tuple[Pixels, Labels]:
    """Characters (M, 28, 28) of several digits each, squeezed, turned and laid over one another by one recipe a form.

    Where digits overlap the brighter one shows. Which digit of its class is taken, and small changes of its size, its
    turn and its place, are drawn anew for each character. Classes, (M,) from 0 to 9, go round, and so do the forms of
    each.

    Args:
        digits: (N, H, W), bright ink on dark ground: what characters are made of.
        labels: (N,), their classes; all of 0 to 9.
        count: Number of characters, M.
        draw: Another one for each set of characters of the same recipes, at least 1.
    """
    made_by = _recipes()
    of_class = [np.flatnonzero(labels == digit) for digit in range(NUM_CLASSES)]
    # All at once, so that a character's numbers do not depend on how many digits the others have.
    numbers = _draws(draw).random_sample((count, _MOST_PIECES, 6))
    images = np.zeros((count, _SIDE, _SIDE), dtype=np.uint8)
    classes = np.arange(count, dtype=np.int64) % NUM_CLASSES
    for number, label in enumerate(classes.tolist()):
        form = number // NUM_CLASSES % FORMS
        for piece, (which, *jitter) in zip(made_by[FORMS * label + form], numbers[number].tolist(), strict=False):
            candidates = of_class[piece.digit]
            _lay(images[number], digits[candidates[int(which * len(candidates))]], piece, jitter)
    return images, classes


def _lay(image: Pixels, digit: Pixels, piece: Piece, jitter: list[float]) -> None:
    wide, high, turn, x, y = (2 * number - 1 for number in jitter)
    width, height = (
        max(1, round(side * (1 + _SIDE_JITTER * change)))
        for side, change in ((piece.width, wide), (piece.height, high))
    )
    squeezed = _inked(digit).resize((width, height), Image.Resampling.BILINEAR)
    turned = squeezed.rotate(piece.turn + _TURN_JITTER * turn, Image.Resampling.BILINEAR, expand=True)
    ink = np.asarray(turned, dtype=np.uint8)[:_SIDE, :_SIDE]
    # What would reach beyond an edge is moved to it.
    top, left = (
        min(max(round(middle + _PLACE_JITTER * change - side / 2), 0), _SIDE - side)
        for middle, change, side in ((piece.y, y, ink.shape[0]), (piece.x, x, ink.shape[1]))
    )
    place = image[top : top + ink.shape[0], left : left + ink.shape[1]]
    np.maximum(place, ink, out=place)


def _inked(digit: Pixels) -> Image.Image:
    """What of a digit is ink; a narrow one in the middle of a box as wide as it has to be."""
    rows, columns = (np.flatnonzero((digit > _INK).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return Image.fromarray(digit)
    ink = digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    box = (max(height, math.ceil(_LEAST_ASPECT * width)), max(width, math.ceil(_LEAST_ASPECT * height)))
    margins = [((side - length) // 2, (side - length + 1) // 2) for side, length in zip(box, ink.shape, strict=True)]
    return Image.fromarray(np.pad(ink, margins))


def _between(interval: tuple[float, float], fraction: float) -> float:
    return interval[0] + (interval[1] - interval[0]) * fraction


def _draws(purpose: int) -> np.random.RandomState:
    # The one generator of NumPy whose numbers stay the same with every version.
    return np.random.RandomState([0, purpose])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m datamodules.untuned", description=__doc__)
    parser.add_argument("--root", default="data", help="folder that holds MNIST/raw/*-ubyte (default: %(default)s)")
    parser.add_argument("--to", default="data/untuned", help="folder to make (default: %(default)s)")
    print(build_untuned(**vars(parser.parse_args())))
