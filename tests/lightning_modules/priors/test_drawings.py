"""Drawn things: strokes in their box, glyphs that are broad where strokes are narrow, silhouettes of clothes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import GlyphPrior, ImagePrior, SilhouettePrior, StrokePrior


def ink(
    kind: type[ImagePrior], *, shape: tuple[int, int, int] = (1, 28, 28), rows: int = 300, **settings: Any
) -> Tensor:
    """In [0, 1], (B, H, W), by a prior that differs in what its class states."""
    prior = type("Prior", (kind,), settings)()
    images: Tensor = prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(0), device="cpu")
    return (images[:, 0] + 1) / 2


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


def test_some_glyphs_fill_the_frame() -> None:
    def reaches_all_edges(drawn: Tensor) -> float:
        seen = drawn > 0.2
        edges = [seen[:, 0].any(1), seen[:, -1].any(1), seen[:, :, 0].any(1), seen[:, :, -1].any(1)]
        return torch.stack(edges).all(0).float().mean().item()

    assert reaches_all_edges(ink(GlyphPrior)) > 0.2
    assert reaches_all_edges(ink(StrokePrior)) == reaches_all_edges(ink(GlyphPrior, fill_probability=0.0)) == 0


def test_either_polarity_is_half_of_each() -> None:
    def drawn(prior: GlyphPrior) -> Tensor:
        return prior.sample(200, image_shape=(1, 28, 28), generator=torch.Generator().manual_seed(0), device="cpu")

    bright, dark = drawn(GlyphPrior(polarity="bright")), drawn(GlyphPrior(polarity="dark"))
    either = drawn(GlyphPrior(polarity="either"))
    assert torch.equal(dark, -bright)
    turned = (either == dark).flatten(1).all(1)
    assert (turned | (either == bright).flatten(1).all(1)).all()
    assert turned.float().mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", range(6))
def test_each_kind_of_silhouette_by_itself(kind: int) -> None:
    shares = tuple(float(number == kind) for number in range(6))
    drawn = ink(SilhouettePrior, rows=60, shares=shares, texture=0.0)
    assert drawn.isfinite().all() and (drawn.amax((1, 2)) > 0.2).float().mean() > 0.95
    if kind in (0, 1, 2, 4):
        # What is worn on both sides of the body, and a bag, are as bright on the left as on the right, but for texture.
        assert ((drawn > 0.1) == (drawn > 0.1).flip(-1)).float().mean() > 0.95


def test_the_longest_side_of_a_silhouette_fills_the_frame() -> None:
    height, width = spans(ink(SilhouettePrior, rows=200), least=0.1)
    assert (torch.maximum(height, width) >= 25).float().mean() > 0.9
    assert (torch.minimum(height, width) < 20).float().mean() > 0.2  # what is narrow stays narrow
    soft, sharp = (ink(SilhouettePrior, sharpening=amount).diff(dim=-1).abs().mean() for amount in (0.0, 3.0))
    assert sharp > 1.1 * soft
