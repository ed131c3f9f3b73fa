"""A mixture of priors: each image is drawn by one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_modules.priors.base import ImagePrior, RandomRows, RowPrior, between
from lightning_modules.priors.photographs import DeadLeavesPrior, FractalPrior
from lightning_modules.priors.strokes import GlyphPrior
from privacy.checks import check_number

_CONTRAST = (0.1, 1.5)


class MixturePrior(RowPrior):
    """Draws each image from one of several priors, all equally often, and blends some pairs of images.

    The choice of a prior and the blending come from the image's row of random numbers; each prior draws its images from
    its own generator, seeded from `generator`.

    Args:
        priors: the priors, one or more.
        blend_probability: probability that an image is blended with another one of the mixture: half of the time as a
            weighted mean (mixup, Zhang et al. 2018), half of the time along a straight cut (after CutMix, Yun et al.
            2019).
        jitter: probability that an image gets another contrast, 0.1 to 1.5 times its own, and another mean.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        *,
        priors: Sequence[ImagePrior],
        blend_probability: float = 0.0,
        jitter: float = 0.0,
    ) -> None:
        if not priors:
            raise ValueError("priors must be one or more, got none")
        self.priors = list(priors)
        self.blend_probability = check_number("blend_probability", blend_probability, least=0, most=1)
        self.jitter = check_number("jitter", jitter, least=0, most=1)
        self.seeds = len(priors) * (2 if blend_probability else 1)

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        return 9

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        images = self._drawn(rows, rows.own[: len(self.priors)], image_shape)
        changed, contrast, mean = rows.uniform(3)[:, :, None, None, None].unbind(1)
        blended = (rows.uniform(1)[:, 0] < self.blend_probability).nonzero()[:, 0]
        if len(blended):
            own = rows.own[len(self.priors) :]
            rows = rows.only(blended)
            others = self._drawn(rows, own, image_shape)
            images[blended] += self._share(rows, image_shape) * (others - images[blended])
        deviations = images - images.mean((1, 2, 3), keepdim=True)
        return torch.where(changed < self.jitter, between(_CONTRAST, contrast) * deviations + 2 * mean - 1, images)

    def _drawn(self, rows: RandomRows, own: Sequence[torch.Generator], image_shape: tuple[int, int, int]) -> Tensor:
        """Draws one image of the mixture per row, (B, C, H, W)."""
        limits = torch.full((len(own),), 1 / len(own)).cumsum(0).to(rows.device)
        kind = torch.bucketize(rows.uniform(1)[:, 0], limits[:-1], right=True)
        images = torch.empty(len(kind), *image_shape, device=rows.device)
        for number, (prior, generator) in enumerate(zip(self.priors, own, strict=True)):
            chosen = (kind == number).nonzero()[:, 0]
            if len(chosen):
                images[chosen] = prior.sample(
                    len(chosen), image_shape=image_shape, generator=generator, device=rows.device
                )
        return images

    def _share(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        """Weight of the second image in each pixel, (B, 1, H, W)."""
        cut, amount, turn = rows.uniform(3)[:, :, None, None, None].unbind(1)
        _, height, width = image_shape
        y = ((torch.arange(height, device=cut.device) + 0.5) / height * 2 - 1)[:, None]
        x = ((torch.arange(width, device=cut.device) + 0.5) / width * 2 - 1)[None]
        line = torch.cos(2 * math.pi * turn) * x + torch.sin(2 * math.pi * turn) * y - 1.2 * (amount - 0.5)
        half = (line * min(height, width) / 2 + 0.5).clamp(0, 1)
        return torch.where(cut < 0.5, half, 0.2 + 0.6 * amount)


class GeneralPrior(MixturePrior):
    """Generic images: edges, textures and shading at all scales, contrasts and brightnesses."""

    def __init__(self) -> None:
        super().__init__(priors=[FractalPrior(), DeadLeavesPrior()], blend_probability=0.5, jitter=0.5)


class BroadPrior(MixturePrior):
    """Half generic images, half characters, dark and bright: for pictures of which nothing is known.

    On digits cropped to 16x16 pixels students after 500 steps were right of 79 % of test images, with strokes of 51 %,
    with generic images alone of 21 %, and with characters alone of 95 % (one seed).
    """

    def __init__(self) -> None:
        super().__init__(priors=[GlyphPrior(polarity="either"), GeneralPrior()])


PRIORS: Mapping[str, str] = {
    "Digits": "StrokePrior",
    "MNIST": "StrokePrior",
    "FashionMNIST": "SilhouettePrior",
    "ImageFolder": "BroadPrior",
}
"""Priors for the images of a data set, by its class; all others of this project take `GeneralPrior`."""
