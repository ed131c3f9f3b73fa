"""Random generators: weights, styles, noise and colours, beside what holds for all (`test_natural_priors.py`)."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import RandomGeneratorPrior
from lightning_modules.priors.random_generators import _decorrelated, _sizes, _wavelets


def draw(rows: int = 32, shape: tuple[int, int, int] = (3, 32, 32), **settings: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    prior = type("Generators", (RandomGeneratorPrior,), settings)()
    return cast(Tensor, prior.sample(rows, image_shape=shape, generator=generator, device="cpu"))


def directions(images: Tensor) -> Tensor:
    """Each image's structure tensor of its brightness, without its trace: twice its direction as a vector, (B, 2)."""
    brightness = images.mean(1)
    # Both differences are about the same point, or their product had a mean.
    down = (brightness[:, :, 1:] + brightness[:, :, :-1]).diff(dim=1)
    across = (brightness[:, 1:] + brightness[:, :-1]).diff(dim=2)
    straight, slanted = (across.square() - down.square()).mean((1, 2)), (2 * across * down).mean((1, 2))
    energy = (down.square() + across.square()).mean((1, 2)).clamp_min(1e-9)
    return torch.stack([straight, slanted], 1) / energy[:, None]


def test_weights_are_drawn_anew_for_as_many_images_as_asked_for() -> None:
    """Images of one generator point in more alike directions than those of several."""

    def alike(of_one: int) -> float:
        found = directions(draw(512, (1, 32, 32), images_per_generator=of_one)).view(32, 16, 2)
        return float(found.mean(1).square().sum(1).mean() / found.square().sum(2).mean())

    together, apart = alike(16), alike(1)
    assert apart == pytest.approx(1 / 16, abs=0.06)
    assert together > 2 * apart


def test_only_images_of_another_generator_depend_on_where_the_generators_change() -> None:
    eights, sixteens = draw(images_per_generator=8), draw(images_per_generator=16)
    torch.testing.assert_close(eights[:8], sixteens[:8], rtol=0, atol=1e-4)
    assert ((eights[8:] - sixteens[8:]).abs().amax((1, 2, 3)) > 0.1).all()


def test_images_of_one_generator_differ_by_their_styles_and_noise() -> None:
    images = draw(images_per_generator=32)
    for settings in ({"style": 0.0}, {"noise": 0.0}):
        other = draw(images_per_generator=32, **settings)
        assert ((images - other).abs().amax((1, 2, 3)) > 0.1).all()
        assert len(torch.unique(other.flatten(1), dim=0)) == 32


def test_noise_gives_images_their_fine_structure() -> None:
    def rough(noise: float) -> float:
        images = draw(256, (1, 32, 32), noise=noise)
        return float((images.diff(dim=3).abs().mean((1, 2, 3)) / images.std((1, 2, 3))).median())

    assert rough(4.0) > 1.3 * rough(0.0)


def test_filters_are_oriented() -> None:
    """The spectrum of a filter lies along a line, that of white noise does not."""

    def eccentricity(filters: Tensor) -> float:
        power = torch.fft.fft2(filters, s=(16, 16)).abs().square()
        at = torch.fft.fftfreq(16)
        down, across = at[:, None].expand(16, 16), at.expand(16, 16)
        total = ((down**2 + across**2) * power).sum((2, 3))
        straight = ((across**2 - down**2) * power).sum((2, 3)) / total
        slanted = (2 * across * down * power).sum((2, 3)) / total
        return float((straight**2 + slanted**2).sqrt().mean())

    generator = torch.Generator().manual_seed(0)
    filters = _wavelets(32, 16, generator)
    assert filters.shape == (32, 16, 5, 5) and filters.isfinite().all()
    assert eccentricity(filters) > 0.5 > 0.3 > eccentricity(torch.randn(32, 16, 5, 5, generator=generator))
    # A few inputs are loud: heavier tails than a normal distribution, whose kurtosis is 3.
    strength = filters.flatten(2).norm(dim=2) * torch.sign(filters[:, :, 2, 2])
    assert strength.pow(4).mean() / strength.square().mean().square() > 4


def test_fields_are_decorrelated_in_each_image() -> None:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(8, 4, 4, generator=generator)
    mixed = (mixing @ torch.randn(8, 4, 1024, generator=generator)).unflatten(2, (32, 32))

    def correlation(fields: Tensor) -> Tensor:
        found = torch.stack([torch.corrcoef(image) for image in fields.flatten(2)])
        return (found - torch.eye(4)).abs().amax((1, 2))

    assert correlation(mixed).amin() > 0.3
    assert correlation(_decorrelated(mixed)).quantile(0.75) < 0.1
    assert _decorrelated(torch.zeros(2, 4, 8, 8)).isfinite().all()


@pytest.mark.parametrize(
    ("height", "width", "sizes"),
    [
        (32, 32, [(4, 4), (8, 8), (16, 16), (32, 32)]),
        (28, 28, [(4, 4), (7, 7), (14, 14), (28, 28)]),
        (8, 12, [(4, 6), (8, 12)]),
        (3, 50, [(3, 50)]),
    ],
)
def test_maps_grow_to_the_size_of_the_image(height: int, width: int, sizes: list[tuple[int, int]]) -> None:
    assert _sizes(height, width) == [torch.Size(size) for size in sizes]
