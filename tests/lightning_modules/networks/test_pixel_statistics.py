"""A generator's pixels have the statistics that were asked for, and can be those of real images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from datamodules import Digits
from lightning_modules.networks import DAFLGenerator, ScaledOutput


def _real_images() -> Tensor:
    digits = Digits()
    digits.setup("test")
    images: Tensor = digits.test_records.__getitems__(range(32))[0]
    return images


def _error_of_learning(images: Tensor, *, scale: float, shift: float) -> float:
    """Mean squared error of a generator that is fitted to images, each from a latent input of its own."""
    torch.manual_seed(0)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    network = ScaledOutput(
        DAFLGenerator(image_shape=shape, latent_dim=32, width=16), scale=[scale], shift=[shift]
    ).train()
    latents = torch.randn(len(images), network.latent_dim)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(60):
        loss = (network(latents) - images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_a_generator_can_make_real_images_at_their_mean_and_standard_deviation_alone() -> None:
    images = _real_images()
    assert images.amin() == -1 and images.amax() == 1
    mean, std = float(images.mean()), float(images.std())
    assert _error_of_learning(images, scale=std, shift=mean) < 0.1 * std**2
    # As DAFL ends it: no fit takes away the distance of the means.
    assert _error_of_learning(images, scale=1.0, shift=0.0) > mean**2


def test_pixels_have_the_stated_statistics_in_each_channel() -> None:
    torch.manual_seed(0)
    network = ScaledOutput(DAFLGenerator(image_shape=(2, 8, 8), width=8), scale=[0.5, 2.0], shift=[-0.7, 0.1])
    images = network(torch.randn(16, 100))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor([-0.7, 0.1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.tensor([0.5, 2.0]), rtol=1e-2, atol=0)


def test_a_network_that_does_not_standardise_is_brought_to_them_where_asked() -> None:
    images = 5 * torch.randn(64, 1, 8, 8) + 3
    kept = ScaledOutput(nn.Identity(), scale=[0.5], shift=[0.0])(images)
    brought = ScaledOutput(nn.Identity(), scale=[0.5], shift=[0.0], standardise=True)(images)
    assert float(kept.std()) == pytest.approx(2.5, rel=0.05)
    assert float(brought.std()) == pytest.approx(0.5, rel=0.01)
    assert float(brought.mean()) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("scale", "shift", "named"), [([1.0], [0.0, 0.0], "one finite number for each"), ([0.0], [0.0], "above 0")]
)
def test_bad_statistics_are_named(scale: list[float], shift: list[float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ScaledOutput(nn.Identity(), scale=scale, shift=shift)
