"""Pictures of what each prior draws: `LightningCLI priors --out docs/priors`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jsonargparse import ArgumentParser
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import make_grid

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

__all__ = ["PICTURES", "PriorPicture", "picture", "priors"]

SEED, ROWS = 0, 4
GREYS, COLOURS = 32, 256


@dataclass(frozen=True, kw_only=True)
class PriorPicture:
    """What one picture shows.

    Attributes:
        prior: the prior, as its defaults have it.
        image_shape: (C, H, W) of an image.
        columns: images of a row.
        zoom: pixels of the picture per pixel of an image.
    """

    prior: ImagePrior
    image_shape: tuple[int, int, int]
    columns: int = 12
    zoom: int = 2


COLOUR = (3, 32, 32)

PICTURES: dict[str, PriorPicture] = {
    "strokes_28": PriorPicture(prior=StrokePrior(), image_shape=(1, 28, 28)),
    "strokes_8": PriorPicture(prior=StrokePrior(), image_shape=(1, 8, 8), zoom=7),
    "glyphs_28": PriorPicture(prior=GlyphPrior(), image_shape=(1, 28, 28)),
    "silhouettes": PriorPicture(prior=SilhouettePrior(), image_shape=(1, 28, 28)),
    "dead_leaves": PriorPicture(prior=DeadLeavesPrior(), image_shape=COLOUR, columns=10),
    "fractals": PriorPicture(prior=FractalPrior(), image_shape=COLOUR, columns=10),
    "gradients": PriorPicture(prior=GradientPrior(), image_shape=COLOUR, columns=10),
    "mixture": PriorPicture(
        prior=MixturePrior(
            priors=[DeadLeavesPrior(), FractalPrior(), GradientPrior()], weights=[3, 2, 1], blend_probability=0.5
        ),
        image_shape=COLOUR,
        columns=10,
    ),
}
"""By file name; the first images of a generator seeded with `SEED`."""


def picture(shown: PriorPicture) -> bytes:
    """A grid of a prior's first images as PNG, in a palette of 256 colours, which makes it a third as large."""
    images = shown.prior.sample(
        ROWS * shown.columns,
        image_shape=shown.image_shape,
        generator=torch.Generator().manual_seed(SEED),
        device="cpu",
    )
    large = images.repeat_interleave(shown.zoom, 2).repeat_interleave(shown.zoom, 3)
    grid = make_grid((large + 1) / 2, nrow=shown.columns, padding=shown.zoom, pad_value=0.5)
    buffer = io.BytesIO()
    to_pil_image(grid).quantize(GREYS if shown.image_shape[0] == 1 else COLOURS).save(
        buffer, format="png", optimize=True
    )
    return buffer.getvalue()


def priors(args: Sequence[str]) -> None:
    """The command `priors [--out FOLDER]`."""
    parser = ArgumentParser(
        prog="LightningCLI priors",
        allow_abbrev=False,
        description="Draw pictures of what each prior draws with its defaults, as PNG.",
    )
    parser.add_argument("--out", type=str, default="docs/priors", help="Folder of the pictures.")
    options = parser.parse_args(list(args))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, shown in PICTURES.items():
        content = picture(shown)
        temporary, path = folder / f".{name}.png.part", folder / f"{name}.png"
        temporary.write_bytes(content)
        temporary.replace(path)
        print(f"{path}: {type(shown.prior).__name__}, {len(content) / 1000:.0f} kB")
