"""What single priors say: strokes, glyphs and clothes that are drawn; colours, edges and spectra of photographs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import DeadLeavesPrior, GlyphPrior, ImagePrior, SilhouettePrior, StrokePrior
from lightning_modules.priors.photographs import power_law_noise


def draw(
    kind: type[ImagePrior], *, rows: int = 64, shape: tuple[int, int, int] = (1, 32, 32), **settings: Any
) -> Tensor:
    """By a prior that differs in what its class states."""
    prior = type("Prior", (kind,), settings)()
    images: Tensor = prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(0), device="cpu")
    return images


def ink(kind: type[ImagePrior], *, rows: int = 300, **settings: Any) -> Tensor:
    """In [0, 1], (B, H, W)."""
    return (draw(kind, **{"rows": rows, "shape": (1, 28, 28), **settings})[:, 0] + 1) / 2


def spans(drawn: Tensor, *, least: float = 0.5) -> tuple[Tensor, Tensor]:
    """Height and width in pixels of each image's ink, counted from `least` on."""

    def span(hit: Tensor) -> Tensor:
        at = torch.arange(hit.shape[1]).expand_as(hit)
        return at.masked_fill(~hit, -1).amax(1) - at.masked_fill(~hit, hit.shape[1]).amin(1) + 1

    return span((drawn >= least).any(2)), span((drawn >= least).any(1))


def offset(drawn: Tensor) -> Tensor:
    """Pixels from the middle to the centre of mass, along the axis on which they are more."""
    at, total = torch.arange(28) + 0.5, drawn.sum((1, 2))
    down, across = ((drawn.sum(axis) * at).sum(1) / total - 14 for axis in (2, 1))
    return torch.maximum(down.abs(), across.abs())


@pytest.mark.parametrize(("shape", "side"), [((1, 28, 28), 20), ((1, 56, 56), 40), ((1, 8, 8), 8)])
def test_strokes_fill_the_box_of_the_data_sets(shape: tuple[int, int, int], side: int) -> None:
    tallest = torch.maximum(*spans(ink(StrokePrior, shape=shape))).float()
    slack = max(1.5, 0.12 * side)  # soft ends fall short, crossings of a pen at the rim reach over
    assert (tallest <= side + slack).all() and (tallest >= side - slack).float().mean() > 0.8
    assert tallest.median().item() == pytest.approx(side, abs=max(1, 0.08 * side))


def test_strokes_are_centred_by_mass_and_glyphs_are_not() -> None:
    assert offset(ink(StrokePrior)).median() < 1
    assert (offset(ink(StrokePrior)) > 4).float().mean() < 0.01
    assert (offset(ink(GlyphPrior, fill_probability=0.0, side=(0.5, 0.7))) > 3).float().mean() > 0.1


def test_either_polarity_is_half_of_each() -> None:
    def drawn(prior: GlyphPrior) -> Tensor:
        return prior.sample(200, image_shape=(1, 28, 28), generator=torch.Generator().manual_seed(0), device="cpu")

    bright, dark = drawn(GlyphPrior(polarity="bright")), drawn(GlyphPrior(polarity="dark"))
    either = drawn(GlyphPrior(polarity="either"))
    assert torch.equal(dark, -bright)
    turned = (either == dark).flatten(1).all(1)
    assert (turned | (either == bright).flatten(1).all(1)).all()
    assert turned.float().mean().item() == pytest.approx(0.5, abs=0.1)


def test_the_longest_side_of_a_silhouette_fills_the_frame() -> None:
    height, width = spans(ink(SilhouettePrior, rows=200), least=0.1)
    assert (torch.maximum(height, width) >= 25).float().mean() > 0.9
    assert (torch.minimum(height, width) < 20).float().mean() > 0.2  # what is narrow stays narrow
    soft, sharp = (ink(SilhouettePrior, sharpening=amount).diff(dim=-1).abs().mean() for amount in (0.0, 3.0))
    assert sharp > 1.1 * soft


SIDE = 64


def test_small_leaves_are_frequent_by_the_power_law() -> None:
    """Twice the radius is a quarter as frequent at density r^-3: counted against the exact distribution function."""
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    for power, share in ((3.0, (0.1**-2 - 0.2**-2) / (0.1**-2 - 0.8**-2)), (0.0, 0.1 / 0.7)):
        radius = type("Leaves", (DeadLeavesPrior,), {"size": (0.1, 0.8), "power": power})()._radius(uniform)
        assert radius.amin() >= 0.0999 and radius.amax() <= 0.8001
        assert (radius < 0.2).float().mean().item() == pytest.approx(share, abs=0.005)


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
