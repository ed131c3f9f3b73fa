"""Generators: shapes, sizes and statistics of images; the VAE's bound against an independent computation."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.networks import DAFLGenerator
from lightning_modules.networks.generators import negative_elbo, sample_codes


def test_parameter_count_is_that_of_dafl() -> None:
    count = sum(parameter.numel() for parameter in DAFLGenerator().parameters())
    dense, convolutions = 101 * 128 * 49, 128 * (128 * 9 + 1) + 64 * (128 * 9 + 1) + (64 * 9 + 1)
    assert count == dense + convolutions + 2 * (128 + 128 + 64)


def test_pixels_have_the_stated_statistics_in_each_channel() -> None:
    torch.manual_seed(0)
    network = DAFLGenerator(image_shape=(2, 8, 8), width=8)
    network.scale.copy_(torch.tensor([0.5, 2.0])[:, None, None])
    network.shift.copy_(torch.tensor([-0.7, 0.1])[:, None, None])
    images = network(torch.randn(16, 100))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor([-0.7, 0.1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.tensor([0.5, 2.0]), rtol=1e-2, atol=0)


def test_the_divergence_is_that_of_the_densities() -> None:
    mean, log_variance = torch.tensor([[0.5, -1.0, 0.0]]), torch.tensor([[0.3, -2.0, 0.0]])
    image = torch.zeros(1, 1, 2, 2)
    loss = negative_elbo(image, image, mean, log_variance)
    # From samples and torch's own densities.
    own, rows = torch.distributions.Normal(mean, (0.5 * log_variance).exp()), (200_000, -1)
    codes = sample_codes(mean.expand(rows), log_variance.expand(rows), draw=torch.Generator().manual_seed(0))
    densities = own.log_prob(codes) - torch.distributions.Normal(0, 1).log_prob(codes)
    expected = float(densities.sum(dim=1).mean())
    assert float(loss) == pytest.approx(expected, rel=0.01)
    # A standard deviation taken for a variance is noticed.
    assert float(negative_elbo(image, image, mean, 0.5 * log_variance)) != pytest.approx(expected, rel=0.05)


def test_the_error_is_a_unit_gaussians_log_likelihood() -> None:
    images, others = torch.randn(4, 1, 3, 3), torch.randn(4, 1, 3, 3)
    zero = torch.zeros(4, 2)
    likelihood = torch.distributions.Normal(others, 1).log_prob(images) - torch.distributions.Normal(0, 1).log_prob(
        torch.zeros(())
    )
    assert torch.allclose(negative_elbo(others, images, zero, zero), -likelihood.flatten(1).sum(1))
