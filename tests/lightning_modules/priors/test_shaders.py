"""Shaders: what each setting does, beside what holds for all priors (`test_natural_priors.py`, `test_spectra.py`)."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import ShaderPrior
from lightning_modules.priors.base import RandomRows


def shader(**settings: Any) -> ShaderPrior:
    """One that differs in what the class states."""
    return cast(ShaderPrior, type("Shader", (ShaderPrior,), settings)())


def draw(prior: ShaderPrior, rows: int = 64, shape: tuple[int, int, int] = (1, 32, 32)) -> Tensor:
    return prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(0), device="cpu")


def roughness(images: Tensor) -> float:
    """Mean step between neighbouring pixels beside an image's own contrast."""
    steps = images.diff(dim=3).abs().mean((1, 2, 3))
    return float((steps / images.std((1, 2, 3)).clamp_min(0.02)).median())


def test_frequencies_and_bends_make_images_rougher() -> None:
    plain: dict[str, Any] = {"polar": 0.0, "tiled": 0.0, "edges": 0.0}
    slow, fast = (roughness(draw(shader(frequency=(f, f), warp=0.0, **plain))) for f in (0.25, 4.0))
    assert fast > 1.5 * slow
    straight, bent = (roughness(draw(shader(frequency=(0.5, 0.5), warp=w, **plain))) for w in (0.0, 2.0))
    assert bent > 1.2 * straight


def test_edges_are_sharp() -> None:
    smooth: dict[str, Any] = {"frequency": (0.25, 0.25), "warp": 0.0, "polar": 0.0, "tiled": 0.0, "depth": 1}

    def sharp(edges: float) -> float:
        return float((draw(shader(edges=edges, **smooth), rows=256).diff(dim=3).abs() > 0.3).float().mean())

    assert sharp(1.0) > 1.5 * sharp(0.0)


def coordinates(**settings: float) -> Tensor:
    """Of the points of 64 images of 16 x 16 pixels, (64, 2, 256)."""
    prior = shader(warp=0.0, **{"polar": 0.0, "tiled": 0.0, **settings})
    side = torch.linspace(-1, 1, 16)
    grid = torch.stack([side.expand(16, 16), side[:, None].expand(16, 16)]).flatten(1)
    numbers = torch.rand(64, prior.numbers((3, 8, 8)), generator=torch.Generator().manual_seed(0))
    return prior._coordinates(RandomRows(numbers), grid)


def test_tiles_and_angles_are_folded_and_other_coordinates_are_not() -> None:
    free, tiled, polar = coordinates(), coordinates(tiled=1.0), coordinates(polar=1.0)
    assert free.abs().amax() > 1.5
    assert tiled.abs().amax() <= 1
    assert polar[:, 1].abs().amax() <= 1 and polar[:, 0].amin() >= -1
    # Straight lines stay straight where nothing folds them.
    bend = [points.unflatten(2, (16, 16)).diff(n=2, dim=3).abs().amax() for points in (free, tiled, polar)]
    assert bend[0] < 1e-5 < 0.1 < min(bend[1:])


def test_deeper_programs_and_more_points_to_a_pixel_change_the_images() -> None:
    images = draw(ShaderPrior())
    assert not torch.allclose(images, draw(shader(depth=3)))
    single, many = (draw(shader(supersampling=points, frequency=(8.0, 16.0))) for points in (1, 4))
    # Means over a pixel have less contrast than single points, and are of the same image.
    assert many.std() < single.std()
    together = torch.corrcoef(torch.stack([single.flatten(), many.flatten()]))[0, 1]
    assert 0.5 < together < 0.999


def test_an_image_does_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = draw(ShaderPrior(), rows=20)
    monkeypatch.setattr("lightning_modules.priors.shaders._POINTS", {"cpu": 7 * 64 * 64})
    torch.testing.assert_close(draw(ShaderPrior(), rows=20), expected, rtol=0, atol=1e-4)
