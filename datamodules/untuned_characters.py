"""Characters like none of the shipped priors, made of MNIST's digits: cropped to their ink, or overlaid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["FORMS", "NUM_CLASSES", "OVERLAID_SIZE", "Piece", "cropped", "overlaid", "recipes"]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

NUM_CLASSES = 10
#: Ways in which a class of overlaid characters is written, as a and A are.
FORMS = 2
OVERLAID_SIZE = 28

_MOST_PIECES = 3
#: Grey values above it count as ink. Below are the ends of soft edges, which would leave a border that looks empty.
_INK = 32
#: A box is at least this wide for its height, and this high for its width: a 1 stays a bar in place of a plain square.
_LEAST_ASPECT = 1 / 3

# Of a recipe. Lengths in pixels, angles in degrees.
_SIDES = (9.0, 19.0)
_TURN = 90.0
_OFFSET = (4.0, 7.0)
# Of one character, about its recipe.
_SIDE_JITTER = 0.1  # of the side
_TURN_JITTER = 8.0
_PLACE_JITTER = 1.5


@dataclass(frozen=True)
class Piece:
    """One digit of a recipe: which one, and where and how it is drawn.

    Attributes:
        digit: Its class, 0 to 9.
        width: Of its ink box before it is turned, in pixels.
        height: Likewise.
        turn: Degrees counterclockwise.
        x: Of its middle, in pixels from the left edge.
        y: Of its middle, in pixels from the upper edge.
    """

    digit: int
    width: float
    height: float
    turn: float
    x: float
    y: float


def cropped(digit: Pixels, *, size: int) -> Pixels:
    """Cuts a digit to its ink and stretches it to fill a square.

    It is stretched up to three times more one way than the other, by Pillow's bilinear filter, which averages when it
    shrinks; a narrower digit is in the middle. One without ink is scaled as it is.

    Args:
        digit: (H, W), bright ink on dark ground.
        size: Height and width in pixels of what comes out.

    Returns:
        (size, size).
    """
    return np.asarray(_inked(digit).resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)


def recipes(seed: int) -> tuple[tuple[Piece, ...], ...]:
    """How overlaid characters are made: `FORMS` recipes of each class, of two or three digits each.

    No two recipes have the same digits. Each of a recipe's digits stands in a different direction from the middle.

    Args:
        seed: Decides all of them.

    Returns:
        Recipe `FORMS * label + form` at that position.
    """
    draw = _draws(seed, purpose=0)
    made: list[tuple[Piece, ...]] = []
    while len(made) < FORMS * NUM_CLASSES:
        count = 2 + int(2 * draw.random_sample())
        digits = np.argsort(draw.random_sample(NUM_CLASSES))[:count]
        first = 2 * math.pi * draw.random_sample()
        rows = draw.random_sample((count, 4))
        if any({piece.digit for piece in other} == set(digits.tolist()) for other in made):
            continue
        pieces = []
        for number, (digit, (wide, high, turn, far)) in enumerate(zip(digits.tolist(), rows.tolist(), strict=True)):
            angle, offset = first + 2 * math.pi * number / count, _between(_OFFSET, far)
            pieces.append(
                Piece(
                    digit=digit,
                    width=_between(_SIDES, wide),
                    height=_between(_SIDES, high),
                    turn=_between((-_TURN, _TURN), turn),
                    x=OVERLAID_SIZE / 2 + offset * math.cos(angle),
                    y=OVERLAID_SIZE / 2 + offset * math.sin(angle),
                )
            )
        made.append(tuple(pieces))
    return tuple(made)


def overlaid(digits: Pixels, labels: Labels, *, count: int, seed: int, draw: int) -> tuple[Pixels, Labels]:
    """Characters of several digits each, squeezed, turned and laid over one another by `recipes(seed)`.

    Where digits overlap the brighter one shows. Which digit of its class is taken, and small changes of its size, its
    turn and its place, are drawn anew for each character. Classes go round, and so do the forms of each.

    Args:
        digits: (N, H, W), bright ink on dark ground: what characters are made of.
        labels: (N,), their classes, 0 to 9.
        count: Number of characters, M.
        seed: Of the recipes, and with `draw` of the characters.
        draw: Another one for each set of characters of the same recipes, at least 1.

    Returns:
        (M, 28, 28), and (M,) classes from 0 to 9.

    Raises:
        ValueError: `labels` lacks a class that a recipe asks for.
    """
    made_by = recipes(seed)
    of_class = [np.flatnonzero(labels == digit) for digit in range(NUM_CLASSES)]
    asked = {piece.digit for recipe in made_by for piece in recipe}
    if absent := sorted(digit for digit in asked if not len(of_class[digit])):
        raise ValueError(f"labels must have each of the digits {sorted(asked)}, got none of {absent}")
    # All at once, so that a character's numbers do not depend on how many digits the others have.
    numbers = _draws(seed, purpose=draw).random_sample((count, _MOST_PIECES, 6))
    images = np.zeros((count, OVERLAID_SIZE, OVERLAID_SIZE), dtype=np.uint8)
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
    ink = np.asarray(turned, dtype=np.uint8)[:OVERLAID_SIZE, :OVERLAID_SIZE]
    # What would reach beyond an edge is moved to it.
    top, left = (
        min(max(round(middle + _PLACE_JITTER * change - side / 2), 0), OVERLAID_SIZE - side)
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


def _draws(seed: int, *, purpose: int) -> np.random.RandomState:
    # The one generator of NumPy whose numbers stay the same with every version.
    return np.random.RandomState([seed, purpose])
