"""Priors for photographs: deterministic, in range, not degenerate, and what they say of photographs."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import (
    DeadLeavesPrior,
    FractalPrior,
    GradientPrior,
    ImagePrior,
    RandomGeneratorPrior,
    ShaderPrior,
)
from lightning_modules.priors.base import RandomRows
from lightning_modules.priors.colours import palette, palette_numbers
from lightning_modules.priors.fractals import power_law_noise

PRIORS: list[ImagePrior] = [
    DeadLeavesPrior(),
    FractalPrior(),
    GradientPrior(),
    RandomGeneratorPrior(),
    ShaderPrior(),
]
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 20, 36), (1, 1, 1)]
each_prior = pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)


def draw(prior: ImagePrior, rows: int = 64, shape: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> Tensor:
    return prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(seed), device="cpu")


@each_prior
@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_finite_in_range_of_the_shape_and_differ(prior: ImagePrior, shape: tuple[int, int, int]) -> None:
    images = draw(prior, shape=shape)
    assert images.shape == (64, *shape) and images.dtype == torch.float32
    assert images.isfinite().all() and images.amin() >= -1 and images.amax() <= 1
    assert images.is_contiguous() and not images.requires_grad
    # Every pixel takes every brightness over the images, dark and bright alike.
    spread = images.std(0)
    assert spread.amin() > 0.25 and images.mean(0).abs().amax() < 0.35
    assert len(torch.unique(images.flatten(1), dim=0)) > 0.9 * len(images)
    if shape[1] > 1:
        assert (images.flatten(2).std(2).amax(1) > 0.02).float().mean() > 0.95


@each_prior
def test_equal_generators_draw_equal_images_whatever_the_global_seed(prior: ImagePrior) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = draw(prior, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(one, draw(prior, seed=7))
    assert not torch.equal(one, draw(prior, seed=8))
    torch.testing.assert_close(one[:10], draw(prior, rows=10, seed=7), rtol=0, atol=1e-5)


@each_prior
def test_batches_of_one_generator_differ(prior: ImagePrior) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [prior.sample(16, image_shape=(1, 16, 16), generator=generator, device="cpu") for _ in range(2)]
    assert len(torch.unique(torch.cat(batches).flatten(1), dim=0)) == 32


@each_prior
def test_autocast_changes_nothing(prior: ImagePrior) -> None:
    expected = draw(prior)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(prior), expected)


@each_prior
def test_channels_go_together_as_in_photographs_without_being_the_same(prior: ImagePrior) -> None:
    images = draw(prior, rows=256)
    within = (images - images.mean((2, 3), keepdim=True)).transpose(0, 1).flatten(1)
    correlation = torch.corrcoef(within)
    assert ((correlation > 0.4) & (correlation < 0.98) | torch.eye(3).bool()).all()


@each_prior
def test_nothing_is_read(prior: ImagePrior, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[type(prior).__module__]
    names = {
        name
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    allowed = {"__future__", "dataclasses", "math", "torch", "torch.nn", "lightning_modules.setting_checks"}
    assert all(name in allowed or str(name).startswith("lightning_modules.priors.") for name in names)

    def refuse(*arguments: Any, **_: Any) -> None:
        raise AssertionError(f"opened {arguments[0]}")

    monkeypatch.setattr(builtins, "open", refuse)
    draw(prior, rows=2)


def test_small_leaves_are_frequent_by_the_power_law() -> None:
    """Twice the radius is a quarter as frequent at density r^-3: counted against the exact distribution function."""
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    for power, share in ((3.0, (0.1**-2 - 0.2**-2) / (0.1**-2 - 0.8**-2)), (0.0, 0.1 / 0.7), (1.0, 1 / 3)):
        radius = DeadLeavesPrior(size=(0.1, 0.8), power=power)._radius(uniform)
        assert radius.amin() >= 0.0999 and radius.amax() <= 0.8001
        assert (radius < 0.2).float().mean().item() == pytest.approx(share, abs=0.005)


def test_leaves_hide_one_another_with_sharp_edges() -> None:
    def steps(prior: ImagePrior) -> Tensor:
        images = draw(prior, rows=128, shape=(1, 32, 32))
        return images.diff(dim=3).abs().flatten()

    leaves, smooth = steps(DeadLeavesPrior(texture=0.0)), steps(GradientPrior())
    assert leaves.quantile(0.5) < 0.03 and (leaves > 0.3).float().mean() > 0.04
    assert (smooth > 0.3).float().mean() < 0.02
    assert (steps(DeadLeavesPrior(leaves=1, texture=0.0)) > 0.3).float().mean() < 0.02
    assert steps(DeadLeavesPrior(texture=1.0)).median() > 2 * leaves.median()


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_noise_has_the_spectrum_it_is_asked_for(exponent: float) -> None:
    white = torch.randn(64, 2, 64, 64, generator=torch.Generator().manual_seed(0))
    noise = power_law_noise(white, torch.full((64,), exponent))
    assert noise.mean((2, 3)).abs().amax() < 1e-4
    torch.testing.assert_close(noise.square().mean((2, 3)), torch.ones(64, 2))
    power = torch.fft.rfft2(noise).abs().square().mean((0, 1))[0, 1:17]
    frequency = torch.arange(1, 17)
    x, y = frequency.log(), power.log() / 2
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert slope.item() == pytest.approx(-exponent, abs=0.1)


def test_fractals_can_be_left_out() -> None:
    without, always = (draw(FractalPrior(fractal_probability=p, exponent=(4.0, 4.0)), rows=32) for p in (0.0, 1.0))
    rough = [images.diff(dim=3).abs().mean() for images in (without, always)]
    assert rough[1] > 2 * rough[0]
    assert ((without != always).flatten(1).any(1)).all()


def test_gradients_have_as_many_colours_as_stops_allow() -> None:
    def turns(stops: tuple[int, int]) -> float:
        """Mean number of times that brightness along the middle row changes its direction."""
        line = draw(type("Gradients", (GradientPrior,), {"stops": stops, "bend": 0.0})(), rows=256, shape=(1, 64, 64))[
            :, 0, 32
        ]
        sign = torch.where(line.diff(dim=1).abs() > 1e-3, line.diff(dim=1).sign(), 0)
        moving = [row[row != 0] for row in sign]
        return sum(float((row.diff() != 0).sum()) for row in moving) / len(moving)

    assert turns((2, 2)) < 0.6 < 1.0 < turns((6, 6))


def test_a_palette_is_smooth_and_closes() -> None:
    count = palette_numbers(3)
    rows = torch.rand(16, count, generator=torch.Generator().manual_seed(0))
    at = torch.linspace(0, 1, 201).expand(16, -1)
    colours = palette(RandomRows(rows), at, channels=3)
    assert colours.shape == (16, 201, 3) and colours.amin() >= 0 and colours.amax() <= 1
    torch.testing.assert_close(colours[:, 0], colours[:, -1], rtol=0, atol=1e-4)
    assert colours.diff(dim=1).abs().amax() < 0.12


def test_a_row_that_is_used_up_is_told() -> None:
    rows = RandomRows(torch.rand(2, 5))
    rows.uniform(2, 2)
    with pytest.raises(ValueError, match="2 random numbers asked for, 1 are left"):
        rows.normal(2)


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (DeadLeavesPrior, {"leaves": 0}, "leaves"),
        (DeadLeavesPrior, {"leaves": 2.5}, "leaves"),
        (DeadLeavesPrior, {"size": (0.5, 0.1)}, "size"),
        (DeadLeavesPrior, {"size": (0.0, 0.1)}, "size"),
        (DeadLeavesPrior, {"power": float("nan")}, "power"),
        (DeadLeavesPrior, {"texture": 1.5}, "texture"),
        (FractalPrior, {"exponent": (2.0, 1.0)}, "exponent"),
        (FractalPrior, {"fractal_probability": -0.1}, "fractal_probability"),
    ],
)
def test_bad_settings_are_named(kind: Any, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kind(**settings)


@each_prior
@pytest.mark.parametrize(("rows", "shape", "named"), [(0, (1, 8, 8), "batch_size"), (1, (1, 0, 8), "image_shape")])
def test_bad_requests_are_named(prior: ImagePrior, rows: int, shape: tuple[int, int, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        draw(prior, rows=rows, shape=shape)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_prior
def test_a_cpu_generator_draws_the_same_images_on_a_gpu(prior: ImagePrior) -> None:
    there = prior.sample(64, image_shape=(3, 32, 32), generator=torch.Generator().manual_seed(0), device="cuda")
    assert there.device.type == "cuda"
    # A point of a fractal may fall into the neighbouring pixel.
    assert ((there.cpu() - draw(prior)).abs() < 1e-3).float().mean() > 0.99
