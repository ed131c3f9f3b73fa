"""A mixture of priors: shares and blending."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import ImagePrior, MixturePrior, StrokePrior


class Flat(ImagePrior):
    """Blank images of one brightness."""

    def __init__(self, level: float) -> None:
        self.level = level

    def sample(self, batch_size: int, *, image_shape: Any, generator: Any, device: Any) -> Tensor:
        return torch.full((batch_size, *image_shape), self.level)


def mixed(rows: int = 4000, **settings: Any) -> Tensor:
    prior = MixturePrior(**{"priors": [Flat(-1.0), Flat(1.0)], **settings})
    return prior.sample(rows, image_shape=(1, 16, 16), generator=torch.Generator().manual_seed(0), device="cpu")


@pytest.mark.parametrize(("weights", "share"), [(None, 0.5), ([3, 1], 0.75), ([0, 2], 0.0), ([2, 0], 1.0)])
def test_weights_are_the_shares(weights: list[float] | None, share: float) -> None:
    images = mixed(weights=weights)
    assert (images[:, 0, 0, 0] == -1).float().mean().item() == pytest.approx(share, abs=0.03 if 0 < share < 1 else 0)
    assert (images == images[:, :, :1, :1]).all()  # blending is off unless asked for


def test_blends_are_as_frequent_as_asked() -> None:
    def share(probability: float) -> float:
        """Of images that hold both levels, along a cut, or one between them."""
        images = mixed(blend_probability=probability)
        low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
        return float(((low == -1) & (high == 1) | (low == high) & (low.abs() < 0.99)).float().mean())

    # Half of the blends are of two equal levels, and a cut may pass beside the image.
    assert 0.4 < share(1.0) < 0.52 and share(0.5) == pytest.approx(share(1.0) / 2, abs=0.04)


def test_priors_of_one_kind_draw_different_images_and_jitter_changes_contrast_and_mean() -> None:
    plain, changed = (mixed(400, priors=[StrokePrior(), StrokePrior()], jitter=jitter) for jitter in (0.0, 0.5))
    assert len(torch.unique(plain.flatten(1), dim=0)) == 400
    differs = (plain != changed).flatten(1).any(1)
    assert 0.4 < differs.float().mean() < 0.6
    assert changed[differs].mean((1, 2, 3)).std() > 2 * plain.mean((1, 2, 3)).std()
