"""A generator's pixels have the statistics that were asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.networks import DAFLGenerator, ScaledOutput


def test_pixels_have_the_stated_statistics_in_each_channel() -> None:
    torch.manual_seed(0)
    network = ScaledOutput(DAFLGenerator(image_shape=(2, 8, 8), width=8), scale=[0.5, 2.0], shift=[-0.7, 0.1])
    images = network(torch.randn(16, 100))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor([-0.7, 0.1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.tensor([0.5, 2.0]), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("scale", "shift", "named"), [([1.0], [0.0, 0.0], "one finite number for each"), ([0.0], [0.0], "above 0")]
)
def test_bad_statistics_are_named(scale: list[float], shift: list[float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ScaledOutput(nn.Identity(), scale=scale, shift=shift)
