"""The VAE's shapes, and its bound against an independent computation."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.networks.generators import ConvVAE, negative_elbo, sample_codes


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 9, 14)])
def test_codes_and_reconstructions_have_their_shapes(shape: tuple[int, int, int]) -> None:
    vae = ConvVAE(image_shape=shape, latent_dim=5, width=4)
    images = torch.randn(3, *shape)
    reconstructions, mean, log_variance = vae(images)
    assert reconstructions.shape == images.shape
    assert mean.shape == log_variance.shape == (3, 5) == vae.encode(images)[0].shape
    assert vae.decode(mean).shape == images.shape


def estimate(rows: int, mean: torch.Tensor, log_variance: torch.Tensor) -> float:
    """The divergence from samples and torch's own densities."""
    own = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    codes = sample_codes(mean.expand(rows, -1), log_variance.expand(rows, -1), draw=torch.Generator().manual_seed(0))
    return float((own.log_prob(codes) - torch.distributions.Normal(0, 1).log_prob(codes)).sum(dim=1).mean())


def test_the_divergence_is_that_of_the_densities() -> None:
    mean, log_variance = torch.tensor([[0.5, -1.0, 0.0]]), torch.tensor([[0.3, -2.0, 0.0]])
    image = torch.zeros(1, 1, 2, 2)
    loss = negative_elbo(image, image, mean, log_variance)
    expected = estimate(200_000, mean, log_variance)
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
