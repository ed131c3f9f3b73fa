"""Views of a batch, each image with numbers of its own, against torchvision's transforms of one image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import functional as transforms

from lightning_modules.functional.views import Views, random_views_of

SAME: dict[str, Any] = {
    "area": 1.0, "aspect": 1.0, "mirror": 0.0, "jitter": 0.0, "grey": 0.0, "blur": 0.0, "cutout": 0.0,
}  # fmt: skip
NO_COLOURS = {"jitter": 1.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def pictures(count: int = 40, channels: int = 3) -> Tensor:
    """Smooth ones, well inside of the range, so that nothing is clamped."""
    noise = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    return (torch.nn.functional.interpolate(noise, size=(12, 10), mode="bilinear") - 0.5) * 0.6


def views(images: Tensor, seed: int = 1, **settings: Any) -> Tensor:
    found = random_views_of(images, Views(**{**SAME, **settings}), generator=torch.Generator().manual_seed(seed))
    assert found.shape == images.shape and found.dtype == torch.float32 and float(found.abs().max()) <= 1
    return found


def test_settings_that_change_nothing_change_nothing() -> None:
    torch.testing.assert_close(views(pictures()), pictures(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_image_has_numbers_of_its_own(channels: int) -> None:
    one = pictures(1, channels).expand(30, -1, -1, -1)
    every = Views(blur=0.5, cutout=0.5)
    found = random_views_of(one, every, generator=torch.Generator().manual_seed(3))
    distances = torch.cdist(found.flatten(1), found.flatten(1)) + torch.eye(30)
    assert float(distances.min()) > 1e-3
    again = random_views_of(one, every, generator=torch.Generator().manual_seed(3))
    assert torch.equal(found, again)
    first = random_views_of(one[:7], every, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(first, found[:7])


def test_half_are_mirrored() -> None:
    found = views(pictures(200), mirror=0.5)
    mirrored = (found - pictures(200).flip(-1)).flatten(1).abs().amax(1) < 1e-5
    kept = (found - pictures(200)).flatten(1).abs().amax(1) < 1e-5
    assert bool((mirrored ^ kept).all()) and 60 < int(mirrored.sum()) < 140


def test_a_crop_is_a_part_of_the_image_enlarged() -> None:
    ramps = torch.stack([torch.linspace(-0.9, 0.9, 32).expand(32, 32)] * 300)[:, None]
    found = views(ramps, area=0.25, aspect=1.0)
    spans = found[..., -1] - found[..., 0]
    shares = (spans[:, 0, 0] / (1.8 * 32 / 31)) ** 2 * (32 / 31) ** 2
    assert 0.22 < float(shares.min()) < 0.35 and 0.85 < float(shares.max()) < 1.05
    assert float((spans - spans[:, :, :1]).abs().max()) < 1e-4  # nothing is turned
    middles = found.mean(dim=(1, 2, 3))
    assert float(middles.min()) < -0.25 and float(middles.max()) > 0.25  # anywhere


@pytest.mark.parametrize(
    ("setting", "one"),
    [("brightness", "adjust_brightness"), ("contrast", "adjust_contrast"), ("saturation", "adjust_saturation")],
)
def test_colours_change_as_torchvision_changes_those_of_one_image(setting: str, one: str) -> None:
    given = pictures()
    found = views(given, **{**NO_COLOURS, setting: 0.3})
    factors = []
    for before, after in zip((given + 1) / 2, (found + 1) / 2, strict=True):
        # The factor that fits best explains the view whole.
        tried = torch.linspace(0.7, 1.3, 601)
        errors = torch.stack([(getattr(transforms, one)(before, float(f)) - after).abs().max() for f in tried])
        assert float(errors.min()) < 2e-3
        factors.append(float(tried[errors.argmin()]))
    assert min(factors) < 0.8 and max(factors) > 1.2
    # Another change does not explain it.
    other = transforms.adjust_brightness((given + 1) / 2, 1.2)
    assert not torch.allclose(other, (found + 1) / 2, atol=1e-2)


def test_a_hue_is_turned_and_greys_stay() -> None:
    given = pictures()
    found = views(given, **{**NO_COLOURS, "hue": 0.5})
    to = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    before, after = (torch.einsum("ij,njhw->nihw", to, (one + 1) / 2) for one in (given, found))
    torch.testing.assert_close(before[:, 0], after[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(before[:, 1:].norm(dim=1), after[:, 1:].norm(dim=1), atol=1e-4, rtol=0)
    turns = torch.atan2(after[:, 2], after[:, 1]) - torch.atan2(before[:, 2], before[:, 1])
    inside = before[:, 1:].norm(dim=1) > 0.03
    of_first = torch.remainder(turns[0][inside[0]] + math.pi, 2 * math.pi)
    assert float(of_first.std()) < 0.05 and not torch.allclose(before[:, 1:], after[:, 1:], atol=0.05)
    grey = pictures(channels=1).expand(-1, 3, -1, -1)
    torch.testing.assert_close(views(grey, **{**NO_COLOURS, "hue": 0.5}), grey, atol=1e-4, rtol=0)


def test_grey_is_torchvisions() -> None:
    found = (views(pictures(), grey=1.0) + 1) / 2
    torch.testing.assert_close(
        found, transforms.rgb_to_grayscale((pictures() + 1) / 2, num_output_channels=3), atol=1e-3, rtol=0
    )


def test_blur_is_gaussian() -> None:
    point = torch.full((60, 1, 21, 21), -1.0)
    point[:, :, 10, 10] = 1.0
    found = (views(point, blur=1.0, blur_width=1.5) + 1) / 2
    torch.testing.assert_close(found.sum(dim=(1, 2, 3)), torch.ones(60), atol=1e-3, rtol=0)
    at = torch.arange(21) - 10.0
    widths = (found.sum(dim=2)[:, 0] * at**2).sum(1).sqrt()
    assert 0 <= float(widths.min()) < 0.5 and 1.3 < float(widths.max()) <= 1.51
    kept = views(point, blur=0.5, blur_width=1.5)
    assert 0 < int((kept == point).flatten(1).all(1).sum()) < 60


def test_a_square_is_covered() -> None:
    given = pictures(50)
    found = views(given, cutout=1.0, cutout_side=0.4)
    changed = (found - given).abs().amax(1) > 1e-4
    areas = changed.flatten(1).sum(1)
    assert 9 <= int(areas.max()) <= 25 and float(changed.float().mean(0).min()) > 0
    for image, view, where in zip(given, found, changed, strict=True):
        if where.any():
            torch.testing.assert_close(view[:, where], image.mean((1, 2))[:, None].expand(3, int(where.sum())))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("area", 0.0), ("aspect", 0.5), ("mirror", 1.5), ("hue", 0.6), ("blur_width", 0.0), ("cutout_side", math.nan)],
)
def test_settings_without_a_meaning_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"views\.{setting} must be"):
        Views(**{setting: value})
