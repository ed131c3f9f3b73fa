"""Priors for photographs: what they say of colours, edges and spectra."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import DeadLeavesPrior, FractalPrior, ImagePrior
from lightning_modules.priors.fractals import power_law_noise

KINDS: list[type[ImagePrior]] = [DeadLeavesPrior, FractalPrior]
SIDE = 64


def draw(
    kind: type[ImagePrior], *, rows: int = 64, shape: tuple[int, int, int] = (1, 32, 32), **settings: Any
) -> Tensor:
    """By a prior that differs in what its class states."""
    prior = type("Prior", (kind,), settings)()
    images: Tensor = prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(0), device="cpu")
    return images


def steps(images: Tensor) -> Tensor:
    return images.diff(dim=3).abs().flatten()


@pytest.mark.parametrize("kind", KINDS)
def test_channels_go_together_as_in_photographs_without_being_the_same(kind: type[ImagePrior]) -> None:
    images = draw(kind, rows=256, shape=(3, 32, 32))
    correlation = torch.corrcoef((images - images.mean((2, 3), keepdim=True)).transpose(0, 1).flatten(1))
    assert ((correlation > 0.4) & (correlation < 0.98) | torch.eye(3).bool()).all()


def test_small_leaves_are_frequent_by_the_power_law() -> None:
    """Twice the radius is a quarter as frequent at density r^-3: counted against the exact distribution function."""
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    for power, share in ((3.0, (0.1**-2 - 0.2**-2) / (0.1**-2 - 0.8**-2)), (0.0, 0.1 / 0.7)):
        radius = type("Leaves", (DeadLeavesPrior,), {"size": (0.1, 0.8), "power": power})()._radius(uniform)
        assert radius.amin() >= 0.0999 and radius.amax() <= 0.8001
        assert (radius < 0.2).float().mean().item() == pytest.approx(share, abs=0.005)


def test_leaves_hide_one_another_with_sharp_edges() -> None:
    leaves, smooth = steps(draw(DeadLeavesPrior, rows=128, texture=0.0)), steps(noise(2.0) / 4)
    assert leaves.quantile(0.5) < 0.03 and (leaves > 0.3).float().mean() > 0.04
    assert (smooth > 0.3).float().mean() < 0.02
    assert steps(draw(DeadLeavesPrior, rows=128, texture=1.0)).median() > 2 * leaves.median()


def noise(exponent: float) -> Tensor:
    white = torch.randn(200, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return power_law_noise(white, torch.full((200,), exponent))


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


def test_noise_has_the_spectrum_that_its_exponent_says() -> None:
    for exponent in (0.0, 1.0):
        assert slopes(noise(exponent)).mean().item() == pytest.approx(-2 * exponent, abs=0.15)
        assert noise(exponent).mean((2, 3)).abs().amax() < 1e-4
        torch.testing.assert_close(noise(exponent).square().mean((2, 3)), torch.ones(200, 3))
