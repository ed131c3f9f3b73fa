"""Pictures of what each prior draws: `LightningCLI priors --out docs/priors`."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import make_grid

from lightning_modules.cli.parsers import OptionParser
from lightning_modules.priors import (
    DeadLeavesPrior,
    FractalPrior,
    GlyphPrior,
    GradientPrior,
    ImagePrior,
    MixturePrior,
    SilhouettePrior,
    StrokePrior,
)
from privacy.files import write_atomically

__all__ = ["PICTURES", "picture", "priors"]

SEED, ROWS = 0, 4
GREYS, COLOURS = 32, 256
GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def picture(prior: ImagePrior, image_shape: tuple[int, int, int], *, columns: int = 12, zoom: int = 2) -> bytes:
    """A grid of a prior's first images as PNG, in a palette of 256 colours, which makes it a third as large.

    Args:
        prior: The prior.
        image_shape: (C, H, W) of an image.
        columns: Images of a row.
        zoom: Pixels of the picture per pixel of an image.
    """
    draw = torch.Generator().manual_seed(SEED)
    images = prior.sample(ROWS * columns, image_shape=image_shape, generator=draw, device="cpu")
    large = images.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3)
    grid = make_grid((large + 1) / 2, nrow=columns, padding=zoom, pad_value=0.5)
    buffer = io.BytesIO()
    to_pil_image(grid).quantize(GREYS if image_shape[0] == 1 else COLOURS).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


MIXTURE = MixturePrior(
    priors=[DeadLeavesPrior(), FractalPrior(), GradientPrior()], weights=[3, 2, 1], blend_probability=0.5
)
PICTURES: dict[str, Callable[[], bytes]] = {
    "strokes_28": partial(picture, StrokePrior(), GREY),
    "strokes_8": partial(picture, StrokePrior(), (1, 8, 8), zoom=7),
    "glyphs_28": partial(picture, GlyphPrior(), GREY),
    "silhouettes": partial(picture, SilhouettePrior(), GREY),
    "dead_leaves": partial(picture, DeadLeavesPrior(), COLOUR, columns=10),
    "fractals": partial(picture, FractalPrior(), COLOUR, columns=10),
    "gradients": partial(picture, GradientPrior(), COLOUR, columns=10),
    "mixture": partial(picture, MIXTURE, COLOUR, columns=10),
}
"""By file name."""


def priors(args: Sequence[str]) -> None:
    """The command `priors [--out FOLDER]`."""
    parser = OptionParser(
        prog="LightningCLI priors", description="Draw pictures of what each prior draws with its defaults, as PNG."
    )
    parser.add_argument("--out", type=Path, default=Path("docs/priors"), help="Folder of the pictures.")
    folder = parser.parse_args(list(args)).out
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in PICTURES.items():
        print(write_atomically(folder / f"{name}.png", drawn()))
