"""A generator that starts from procedural images instead of from noise."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from lightning_modules.priors.base import ImagePrior
from lightning_modules.runtime.randomness import key, stream

__all__ = ["fit_generator"]

KL_WEIGHT = 0.3
"""Twice the variance that a pixel is allowed: less is sharper where z is an image's own, but not where z is drawn."""


def fit_generator(
    generator: nn.Module,
    prior: ImagePrior,
    *,
    steps: int,
    batch_size: int,
    image_shape: tuple[int, int, int],
    latent_dim: int,
    seed: int,
    device: torch.device | str = "cpu",
    learning_rate: float = 2e-3,
) -> float:
    """Fits a generator to a prior, as the decoder of a variational autoencoder (Kingma and Welling 2014).

    After it, standard normal latents give images like the prior's, if softer. It sees only the prior: no teacher, no
    data, nothing charged. The encoder is thrown away. Random numbers depend only on `seed`, the global generators
    are left as they were, and an interruption leaves the generator as it was.

    The error is in the prior's own range. A generator whose pixels have another mean or standard deviation, whatever it
    learns, keeps an error that no fit removes; its least is at the same images all the same, since with mean and
    variance fixed only the covariance with the target is left.

    Args:
        generator: maps latents (B, latent_dim) to images (B, C, H, W); changed in place.
        prior: draws the images.
        steps: 0 changes nothing.
        batch_size: B, images of a step; at least 2.
        image_shape: (C, H, W).
        latent_dim: width of the latents.
        seed: of everything random.
        device: where the generator is.
        learning_rate: of Adam, going down to 0 along half a cosine.

    Returns:
        Mean squared error of the last step's reconstructions; NaN without a step.

    Raises:
        ValueError: for one image per step, of which no batch statistics can be taken.
    """
    if batch_size < 2:
        raise ValueError(f"batch_size must be at least 2, got {batch_size}")
    if not steps:
        return math.nan
    device = torch.device(device)
    cuda = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=cuda),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        torch.manual_seed(key(seed, 0, 0, "warm start"))
        decoder = copy.deepcopy(generator).train()
        decoder.requires_grad_(True)
        encoder = _encoder(image_shape, latent_dim).to(device)
        optimizer = torch.optim.Adam([*decoder.parameters(), *encoder.parameters()], lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        error = torch.tensor(math.nan)
        for step in range(steps):
            draw = stream(seed, step, 0, "warm start")
            images = prior.sample(batch_size, image_shape=image_shape, generator=draw, device=device)
            mean, log_variance = encoder(images).chunk(2, dim=1)
            log_variance = log_variance.clamp(-8, 8)
            chance = torch.randn(mean.shape, generator=draw).to(device)
            error = (decoder(mean + chance * (log_variance / 2).exp()).float() - images).square().mean()
            divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1).mean() / 2
            optimizer.zero_grad()
            (error + KL_WEIGHT * divergence / images[0].numel()).backward()
            optimizer.step()
            schedule.step()
    generator.load_state_dict(decoder.state_dict())
    return float(error.detach())


def _encoder(image_shape: tuple[int, int, int], latent_dim: int, *, width: int = 32) -> nn.Module:
    """Maps images (B, C, H, W) to mean and log-variance of their latents, (B, 2 · latent_dim)."""
    channels, height, columns = image_shape
    layers: list[nn.Module] = []
    for outputs in (width, 2 * width):
        layers += [nn.Conv2d(channels, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
        channels, height, columns = outputs, -(-height // 2), -(-columns // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * columns, 2 * latent_dim))
