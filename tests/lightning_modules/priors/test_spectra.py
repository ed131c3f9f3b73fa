"""Spectra like those of photographs: power falls as 1/f^2 or so, and faster in one image than in another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import ImagePrior, RandomGeneratorPrior, ShaderPrior
from lightning_modules.priors.fractals import power_law_noise

PRIORS: list[ImagePrior] = [RandomGeneratorPrior(), ShaderPrior()]
SIDE = 64


def slopes(images: Tensor) -> Tensor:
    """Slope of each image's power over the frequency, both logarithmic, (B,).

    0 of white noise, about -2 of photographs. Of the mean of the channels, under a Hann window: opposite borders of an
    image do not fit.
    """
    brightness = images.mean(1)
    window = torch.hann_window(SIDE, periodic=False)
    windowed = (brightness - brightness.mean((1, 2), keepdim=True)) * window[:, None] * window
    power = torch.fft.fft2(windowed).abs().square()
    at = torch.fft.fftfreq(SIDE) * SIDE
    distance = (at[:, None] ** 2 + at[None] ** 2).sqrt().round()
    rings = torch.arange(2, SIDE // 2)
    mean = torch.stack([power[:, distance == ring].mean(1) for ring in rings], 1)
    x = rings.log() - rings.log().mean()
    return (mean.clamp_min(1e-9).log() * x).sum(1) / x.square().sum()


def like_photographs(images: Tensor) -> bool:
    """Whether the median slope is a photograph's (-1.5 to -3), and none but a few are white noise's."""
    found = slopes(images)
    return bool(-3 < found.median() < -1.5 and (found < -0.4).float().mean() > 0.9)


def various(images: Tensor) -> bool:
    """Whether the middle half of the slopes is wider than images of one slope have it."""
    found = slopes(images)
    return bool(found.quantile(0.75) - found.quantile(0.25) > 0.5)


def noise(exponent: float) -> Tensor:
    white = torch.randn(200, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return power_law_noise(white, torch.full((200,), exponent))


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_spectra_are_like_those_of_photographs_and_differ(prior: ImagePrior) -> None:
    generator = torch.Generator().manual_seed(0)
    images = prior.sample(200, image_shape=(3, SIDE, SIDE), generator=generator, device="cpu")
    assert like_photographs(images) and various(images)


def test_noise_of_a_known_slope_is_told_apart() -> None:
    assert slopes(noise(1.0)).mean().item() == pytest.approx(-2, abs=0.15)
    assert like_photographs(noise(1.0)) and not various(noise(1.0))
    assert not like_photographs(noise(0.0)) and not like_photographs(noise(2.0))
