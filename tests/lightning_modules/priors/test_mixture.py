"""A mixture of priors: shares, blending, and its nested list on the command line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import ImagePrior, MixturePrior, StrokePrior


class Flat(ImagePrior):
    """Blank images of one brightness."""

    def __init__(self, *, level: float) -> None:
        self.level = level

    def sample(self, batch_size: int, *, image_shape: Any, generator: Any, device: Any) -> Tensor:
        return torch.full((batch_size, *image_shape), self.level)


def draw(prior: ImagePrior, rows: int = 64, shape: tuple[int, int, int] = (1, 16, 16), seed: int = 0) -> Tensor:
    return prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(seed), device="cpu")


@pytest.mark.parametrize(("weights", "share"), [(None, 0.5), ([3, 1], 0.75), ([0, 2], 0.0), ([2, 0], 1.0)])
def test_weights_are_the_shares(weights: list[float] | None, share: float) -> None:
    images = draw(MixturePrior(priors=[Flat(level=-1.0), Flat(level=1.0)], weights=weights), rows=4000, shape=(1, 2, 2))
    assert (images[:, 0, 0, 0] == -1).float().mean().item() == pytest.approx(share, abs=0.03 if 0 < share < 1 else 0)
    assert (images == images[:, :, :1, :1]).all()


def test_priors_of_one_kind_draw_different_images() -> None:
    generator = torch.Generator().manual_seed(0)
    prior = MixturePrior(priors=[StrokePrior(), StrokePrior()])
    images = [prior.sample(100, image_shape=(1, 16, 16), generator=generator, device="cpu") for _ in range(2)]
    assert len(torch.unique(torch.cat(images).flatten(1), dim=0)) == 200


def test_blending_is_off_unless_asked_for_and_as_frequent_as_asked() -> None:
    def blended(probability: float) -> tuple[float, float]:
        """Shares of cuts and of means: images that hold both levels, and one between them."""
        priors = [Flat(level=-1.0), Flat(level=1.0)]
        images = draw(MixturePrior(priors=priors, blend_probability=probability), rows=4000)
        low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
        cut, mean = (low == -1) & (high == 1), (low == high) & (low.abs() < 0.99)
        return float(cut.float().mean()), float(mean.float().mean())

    assert blended(0.0) == (0.0, 0.0)
    # Half of the blends are of two equal levels, and a cut may pass beside the image.
    assert all(0.15 < share < 0.3 for share in blended(1.0)) and 0.4 < sum(blended(1.0)) < 0.52
    assert sum(blended(0.5)) == pytest.approx(sum(blended(1.0)) / 2, abs=0.04)


def test_jitter_changes_contrast_and_mean_and_nothing_else() -> None:
    plain, changed = (draw(MixturePrior(priors=[StrokePrior()], jitter=jitter), rows=400) for jitter in (0.0, 0.5))
    differs = (plain != changed).flatten(1).any(1)
    assert 0.4 < differs.float().mean() < 0.6
    assert changed[differs].mean((1, 2, 3)).std() > 2 * plain.mean((1, 2, 3)).std()
    inside = differs & (changed.abs() < 1).flatten(1).all(1)
    flat = torch.stack([plain[inside].flatten(1), changed[inside].flatten(1)], 1)
    assert len(flat) > 20 and all(torch.corrcoef(pair)[0, 1] > 0.999 for pair in flat)
