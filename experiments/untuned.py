"""Makes two data sets of characters unlike all shipped priors from MNIST digits, in `data/untuned`.

`python -m experiments.untuned` reads `data/MNIST`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from datamodules.base import Part
from datamodules.digits import MNIST

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

NUM_CLASSES = 10
#: Number of forms of an overlaid character of one class, like a and A.
FORMS = 2
#: Name, side in pixels, and numbers of characters for training and testing: those of the cropped set are USPS's, whose
#: digits also reach the edge.
SETS = (("cropped", 16, (7291, 2007)), ("overlaid", 28, (8000, 2000)))

_PARTS: tuple[Part, Part] = ("train", "test")
_MOST_PIECES, _SIDE = 3, 28
#: Grey values above this count as ink; fainter soft edges would leave a border that looks empty.
_INK = 32
#: Smallest ratio of a box's sides in either direction, so that a 1 stays a bar and does not become a square.
_LEAST_ASPECT = 1 / 3
# Ranges of a recipe, in pixels and degrees.
_SIDES, _TURN, _OFFSET = (9.0, 19.0), 90.0, (4.0, 7.0)
# Variation of characters about their recipe: relative to the side, in degrees, in pixels.
_SIDE_JITTER, _TURN_JITTER, _PLACE_JITTER = 0.1, 8.0, 1.5


class Piece(NamedTuple):
    """One digit of a recipe: class, ink box before rotation, counterclockwise rotation in degrees, and centre."""

    digit: int
    width: float
    height: float
    turn: float
    x: float
    y: float


def build_untuned(*, root: str | os.PathLike[str], to: str | os.PathLike[str]) -> Path:
    """Writes both sets for `ImageFolder` as `SET/PART/CLASS/NUMBER.png`, bright ink on a dark ground; returns `to`.

    `cropped` has the first digits of each of MNIST's parts, cropped to their ink and stretched to 16×16 pixels.
    `overlaid` has characters of 28×28 pixels made of two or three digits, see `overlaid`. A set's `train` is made of
    MNIST's training file only, and its `test` of the test file only.

    Raises:
        MissingDataError: MNIST's files are not in `root`.
        FileExistsError: `to` exists already.
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
    """Crop a digit (H, W), bright on a dark ground, to its ink and stretch it to `size` x `size` pixels.

    It is stretched at most three times more in one direction than in the other; narrower digits are centred. Pillow's
    bilinear filter averages when it shrinks. A digit without ink is scaled as it is.
    """
    return np.asarray(_inked(digit).resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)


def _recipes() -> list[list[Piece]]:
    """Makes the recipes of overlaid characters: `FORMS` per class, in order of class, each of other digits.

    Each of a recipe's two or three digits is in a different direction from the centre.
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
    """Draws characters (M, 28, 28) of several digits each, resized, rotated and overlaid by the recipe of their form.

    Overlapping digits are combined by their maximum. Each character draws which digit of a class it uses, and small
    changes of size, rotation and place. Labels (M,) cycle through 0 to 9, and forms through those of each class.

    Args:
        digits: (N, H, W), bright ink on a dark ground, the digits to use.
        labels: (N,), their classes, which must include all of 0 to 9.
        count: Number of characters, M.
        draw: Seed, at least 1; sets of characters with the same recipes need different ones.
    """
    made_by = _recipes()
    of_class = [np.flatnonzero(labels == digit) for digit in range(NUM_CLASSES)]
    # Drawn at once, so that a character's numbers do not depend on the other characters.
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
    # Digits that would reach beyond an edge are moved to it.
    top, left = (
        min(max(round(middle + _PLACE_JITTER * change - side / 2), 0), _SIDE - side)
        for middle, change, side in ((piece.y, y, ink.shape[0]), (piece.x, x, ink.shape[1]))
    )
    place = image[top : top + ink.shape[0], left : left + ink.shape[1]]
    np.maximum(place, ink, out=place)


def _inked(digit: Pixels) -> Image.Image:
    """Crop a digit to its ink; a narrow one is centred in a box of the smallest allowed aspect ratio."""
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
    # NumPy's only generator whose numbers are the same in every version.
    return np.random.RandomState([0, purpose])


if __name__ == "__main__":
    print(build_untuned(root="data", to="data/untuned"))
