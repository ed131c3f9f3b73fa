"""The wide prior of characters: deterministic, in range, and broad where the stroke prior is narrow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import GlyphPrior, ImagePrior, StrokePrior

SHAPES = [(1, 8, 8), (1, 16, 16), (1, 28, 28), (3, 32, 32), (1, 30, 20), (1, 1, 1)]


def draw(prior: ImagePrior, rows: int = 200, shape: tuple[int, int, int] = (1, 28, 28), seed: int = 0) -> Tensor:
    return prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(seed), device="cpu")


def ink_of(images: Tensor) -> Tensor:
    return (images[:, 0] + 1) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_finite_in_range_and_of_the_shape(shape: tuple[int, int, int]) -> None:
    images = draw(GlyphPrior(), shape=shape)
    assert images.shape == (200, *shape) and images.dtype == torch.float32
    assert images.isfinite().all() and images.amin() >= -1 and images.amax() <= 1
    assert images.is_contiguous()
    if shape != (1, 1, 1):
        assert images.amin() < -0.9 and images.amax() > 0.9
        assert (images.flatten(1).amax(1) > -0.9).all()  # none is empty
    assert all(torch.equal(images[:, 0], images[:, channel]) for channel in range(shape[0]))


def test_equal_generators_draw_equal_images_however_many_are_drawn() -> None:
    state = torch.get_rng_state()
    one = draw(GlyphPrior(), seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(one[:10], draw(GlyphPrior(), rows=10, seed=7), rtol=0, atol=1e-4)
    assert torch.equal(one, draw(GlyphPrior(), seed=7))
    assert not torch.equal(one, draw(GlyphPrior(), seed=8))


def _reaches_all_edges(prior: ImagePrior) -> float:
    """Share of images with ink in the first and last row and column, where cropped data have it."""
    seen = ink_of(draw(prior)) > 0.2
    edges = [seen[:, 0].any(1), seen[:, -1].any(1), seen[:, :, 0].any(1), seen[:, :, -1].any(1)]
    return torch.stack(edges).all(0).float().mean().item()


def test_some_images_fill_the_frame_and_some_lie_small_and_off_its_middle() -> None:
    assert _reaches_all_edges(GlyphPrior()) > 0.2
    assert _reaches_all_edges(StrokePrior()) == 0
    assert _reaches_all_edges(GlyphPrior(fill_probability=0.0, side=(0.5, 0.7))) == 0

    def offsets(prior: ImagePrior) -> Tensor:
        ink = ink_of(draw(prior))
        return ((ink.sum(1) * (torch.arange(28) + 0.5)).sum(1) / ink.sum((1, 2)) - 14).abs()

    assert (offsets(GlyphPrior(fill_probability=0.0, side=(0.5, 0.7))) > 3).float().mean() > 0.1
    assert (offsets(StrokePrior()) > 3).float().mean() < 0.01


def test_settings_do_what_they_say() -> None:
    def mean_ink(**settings: Any) -> float:
        return ink_of(draw(GlyphPrior(**settings))).mean().item()

    assert mean_ink(pen_width=(0.2, 0.2)) > 1.5 * mean_ink(pen_width=(0.08, 0.08))
    assert mean_ink(strokes=(8, 8)) > 1.3 * mean_ink(strokes=(1, 1))
    faint, full = (ink_of(draw(GlyphPrior(ink=(level, level)))).flatten(1).amax(1) for level in (0.5, 1.0))
    assert (faint < 0.55).float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert (full < 0.55).float().mean().item() < 0.05


def test_either_polarity_is_half_of_each() -> None:
    bright, dark, either = (draw(GlyphPrior(polarity=way)) for way in ("bright", "dark", "either"))  # type: ignore[arg-type]
    assert torch.equal(dark, -bright)
    turned = (either == dark).flatten(1).all(1)
    assert (turned | (either == bright).flatten(1).all(1)).all()
    assert turned.float().mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"strokes": (0, 3)}, "strokes"),
        ({"strokes": (5, 3)}, "strokes"),
        ({"strokes": (1, 40)}, "strokes"),
        ({"strokes": (1.5, 3)}, "strokes"),
        ({"reach": (0.0, 1.0)}, "reach"),
        ({"join_probability": 1.1}, "join_probability"),
        ({"loop_probability": -0.1}, "loop_probability"),
        ({"fill_probability": float("nan")}, "fill_probability"),
        ({"pen_width": (0.2, 0.1)}, "pen_width"),
        ({"blur": (0.1, 0.9)}, "blur"),
        ({"slant": -0.1}, "slant"),
        ({"side": (0.5, 1.2)}, "side"),
        ({"ink": (0.5,)}, "ink"),
        ({"polarity": "grey"}, "polarity"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        GlyphPrior(**settings)
