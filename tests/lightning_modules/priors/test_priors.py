"""What holds for every prior: deterministic, in range, not degenerate, nothing but its settings and its generator."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import (
    DeadLeavesPrior,
    FractalPrior,
    GlyphPrior,
    ImagePrior,
    MixturePrior,
    SilhouettePrior,
    StrokePrior,
    base,
)

DRAWINGS: list[ImagePrior] = [StrokePrior(), GlyphPrior(), SilhouettePrior()]
PHOTOGRAPHS: list[ImagePrior] = [DeadLeavesPrior(), FractalPrior()]
MIXTURES: list[ImagePrior] = [
    MixturePrior(priors=[StrokePrior(), DeadLeavesPrior()]),
    MixturePrior(priors=[DeadLeavesPrior(), FractalPrior()], blend_probability=0.5),
]
SHAPES = [(1, 8, 8), (3, 20, 36), (1, 1, 1)]


def _name(prior: ImagePrior) -> str:
    return type(prior).__name__


each_prior = pytest.mark.parametrize("prior", [*DRAWINGS, *PHOTOGRAPHS, *MIXTURES], ids=_name)


def draw(prior: ImagePrior, rows: int = 64, shape: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> Tensor:
    return prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(seed), device="cpu")


@each_prior
@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_finite_in_range_of_the_shape_and_differ(prior: ImagePrior, shape: tuple[int, int, int]) -> None:
    images = draw(prior, shape=shape)
    assert images.shape == (64, *shape) and images.dtype == torch.float32
    assert images.isfinite().all() and images.amin() >= -1 and images.amax() <= 1
    assert images.is_contiguous() and not images.requires_grad
    if shape[1] > 1:
        assert len(torch.unique(images.flatten(1), dim=0)) > 0.9 * len(images)
        assert (images.flatten(2).std(2).amax(1) > 0.02).float().mean() > 0.95  # hardly any is blank
    if prior in DRAWINGS:
        assert all(torch.equal(images[:, 0], images[:, channel]) for channel in range(shape[0]))
    if prior in PHOTOGRAPHS:
        # Every pixel takes every brightness over the images, dark and bright alike.
        assert images.std(0).amin() > 0.25 and images.mean(0).abs().amax() < 0.35


@each_prior
def test_the_generator_alone_decides_the_images(prior: ImagePrior) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = draw(prior, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(one, draw(prior, seed=7))
    assert not torch.equal(one, draw(prior, seed=8))
    torch.testing.assert_close(one[:10], draw(prior, rows=10, seed=7), rtol=0, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(prior, seed=7), one)
    generator = torch.Generator().manual_seed(0)
    batches = [prior.sample(16, image_shape=(1, 16, 16), generator=generator, device="cpu") for _ in range(2)]
    assert len(torch.unique(torch.cat(batches).flatten(1), dim=0)) == 32


@each_prior
def test_large_images_are_drawn_in_pieces(prior: ImagePrior, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw(prior)
    monkeypatch.setattr(base, "_PIECE", 4 * whole[0].numel() * 25)
    assert torch.allclose(draw(prior), whole, atol=1e-5)


def test_images_of_a_seed_stay_what_they_are() -> None:
    """Students and tables depend on them. Mean and deviation of 64 images, and the mean of the first."""
    found = {_name(prior): draw(prior) for prior in (*DRAWINGS, *PHOTOGRAPHS, MIXTURES[1])}
    figures = {name: (float(all_.mean()), float(all_.std()), float(all_[0].mean())) for name, all_ in found.items()}
    assert figures == {
        "StrokePrior": pytest.approx((-0.71386, 0.63744, -0.74935), abs=1e-4),
        "GlyphPrior": pytest.approx((-0.64751, 0.63116, -0.77479), abs=1e-4),
        "SilhouettePrior": pytest.approx((-0.46430, 0.68621, -0.58567), abs=1e-4),
        "DeadLeavesPrior": pytest.approx((-0.03486, 0.55542, -0.62534), abs=1e-4),
        "FractalPrior": pytest.approx((0.02418, 0.57021, 0.07946), abs=1e-4),
        "MixturePrior": pytest.approx((-0.00512, 0.55767, 0.05182), abs=1e-4),
    }


@each_prior
def test_nothing_is_read(prior: ImagePrior, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **_: Any) -> None:
        raise AssertionError(f"opened {arguments[0]}")

    monkeypatch.setattr(builtins, "open", refuse)
    draw(prior, rows=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_prior
def test_a_cpu_generator_draws_the_same_images_on_a_gpu(prior: ImagePrior) -> None:
    there = prior.sample(64, image_shape=(3, 32, 32), generator=torch.Generator().manual_seed(0), device="cuda")
    assert there.device.type == "cuda"
    # A point of a fractal may fall into the neighbouring pixel.
    assert ((there.cpu() - draw(prior)).abs() < 1e-3).float().mean() > 0.99


class Flat(ImagePrior):
    """Blank images of one brightness."""

    def __init__(self, level: float) -> None:
        self.level = level

    def sample(self, batch_size: int, *, image_shape: Any, generator: Any, device: Any) -> Tensor:
        return torch.full((batch_size, *image_shape), self.level)


def test_priors_have_equal_shares() -> None:
    images = MixturePrior(priors=[Flat(-1.0), Flat(1.0)]).sample(
        4000, image_shape=(1, 16, 16), generator=torch.Generator().manual_seed(0), device="cpu"
    )
    assert (images[:, 0, 0, 0] == -1).float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert (images == images[:, :, :1, :1]).all()  # blending is off unless asked for
