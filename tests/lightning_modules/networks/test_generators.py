"""Shapes, size and statistics of the generator's images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.networks import DAFLGenerator, ScaledOutput


@pytest.mark.parametrize("image_shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 30, 45), (1, 5, 7)])
def test_images_have_the_shape_asked_for(image_shape: tuple[int, int, int]) -> None:
    network = DAFLGenerator(image_shape=image_shape, latent_dim=12, width=8)
    images = network(torch.randn(4, 12))
    assert images.shape == (4, *image_shape)
    images.square().sum().backward()
    # A bias before a batch norm is cancelled by it, hence "reached" and not "not zero".
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_parameter_count_is_that_of_dafl() -> None:
    count = sum(parameter.numel() for parameter in DAFLGenerator().parameters())
    dense, convolutions = 101 * 128 * 49, 128 * (128 * 9 + 1) + 64 * (128 * 9 + 1) + (64 * 9 + 1)
    assert count == dense + convolutions + 2 * (128 + 128 + 64)


def test_images_are_standardised_over_the_batch() -> None:
    torch.manual_seed(0)
    network = DAFLGenerator(image_shape=(2, 28, 28), width=8)
    last = network.end[-1]
    assert isinstance(last, nn.BatchNorm2d) and not last.affine
    images = network(torch.randn(16, 100))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(2), rtol=0, atol=1e-4)
    assert images.amax() > 1


def test_pixels_have_the_stated_statistics_in_each_channel() -> None:
    torch.manual_seed(0)
    network = ScaledOutput(DAFLGenerator(image_shape=(2, 8, 8), width=8), scale=[0.5, 2.0], shift=[-0.7, 0.1])
    images = network(torch.randn(16, 100))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor([-0.7, 0.1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.tensor([0.5, 2.0]), rtol=1e-2, atol=0)
