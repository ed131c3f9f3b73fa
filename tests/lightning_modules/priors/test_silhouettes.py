from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import SilhouettePrior


def draw(
    prior: SilhouettePrior, *, count: int = 60, shape: tuple[int, int, int] = (1, 28, 28), seed: int = 0
) -> Tensor:
    return prior.sample(count, image_shape=shape, generator=torch.Generator().manual_seed(seed), device="cpu")


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 20, 36)])
def test_shape_range_and_content(shape: tuple[int, int, int]) -> None:
    images = draw(SilhouettePrior(), shape=shape)
    assert images.shape == (60, *shape) and images.dtype == torch.float32
    assert float(images.min()) >= -1 and float(images.max()) <= 1
    # Something is there, on a ground.
    assert (images.amax(dim=(1, 2, 3)) > -0.6).float().mean() > 0.95
    assert (images.amin(dim=(1, 2, 3)) < -0.8).float().mean() > 0.7


def test_a_seed_draws_the_same_images_and_another_seed_others() -> None:
    torch.manual_seed(0)
    first = draw(SilhouettePrior())
    torch.manual_seed(1)
    assert torch.equal(first, draw(SilhouettePrior()))
    assert not torch.equal(first, draw(SilhouettePrior(), seed=1))


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    draw(SilhouettePrior())
    assert torch.equal(torch.rand(3), expected)


def test_images_differ_from_one_another() -> None:
    images = draw(SilhouettePrior()).flatten(1)
    distance = torch.cdist(images, images) + 1e3 * torch.eye(len(images))
    assert float(distance.min()) > 0.5


@pytest.mark.parametrize("kind", range(6))
def test_each_kind_can_be_drawn_alone(kind: int) -> None:
    shares = tuple(float(number == kind) for number in range(6))
    images = draw(SilhouettePrior(shares=shares))
    assert torch.isfinite(images).all()
    if kind in (0, 1, 2, 4):
        # What is worn on both sides of the body, and a bag, are as bright on the left as on the right, but for texture.
        plain = draw(SilhouettePrior(shares=shares, texture=0.0)) > -0.8
        assert (plain == plain.flip(-1)).float().mean() > 0.95


def test_the_longest_side_fills_the_frame() -> None:
    images = draw(SilhouettePrior(), count=200) > -0.8
    rows, columns = images.any(dim=(1, 3)).sum(dim=1), images.any(dim=(1, 2)).sum(dim=1)
    longest = torch.maximum(rows, columns)
    assert (longest >= 25).float().mean() > 0.9
    # What is narrow stays narrow.
    assert (torch.minimum(rows, columns) < 20).float().mean() > 0.2


def test_sharpening_makes_edges_steeper() -> None:
    soft, sharp = (draw(SilhouettePrior(sharpening=amount)) for amount in (0.0, 3.0))
    assert sharp.diff(dim=-1).abs().mean() > 1.1 * soft.diff(dim=-1).abs().mean()


def test_no_data_set_is_imported() -> None:
    assert "datasets" not in sys.modules[SilhouettePrior.__module__].__dict__


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": (1.0, 1.0)}, "shares"),
        ({"shares": (0.0,) * 6}, "shares"),
        ({"shares": (-1.0, 1.0, 1.0, 1.0, 1.0, 1.0)}, "shares"),
        ({"texture": 1.5}, "texture"),
        ({"sharpening": -1.0}, "sharpening"),
    ],
)
def test_settings_without_meaning(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SilhouettePrior(**settings)
    with pytest.raises(ValueError, match="batch_size"):
        draw(SilhouettePrior(), count=0)
