"""Generative inversion, GMI (Zhang et al. 2020, "The secret revealer")."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from privacy.attacks.answers import Records
from privacy.attacks.drawing import Decoder, wanted_classes

_CODE = 64
_REALISM = 0.1
"""Weight of the discriminator in the search."""


def generative_inversion(
    model: nn.Module, *, background: Tensor, num_classes: int, steps: int = 400, search: int = 200
) -> Records:
    """Train a GAN on the attacker's images and search its codes for images that the model assigns to each class.

    Threat model: the attacker has the published weights and its own images, similar or procedural ones.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        background: (N, C, H, W) in [-1, 1], the attacker's images.
        num_classes: c.
        steps: Training steps of the GAN (hinge loss, spectral norm), on 64 images each.
        search: Steps of Adam on the codes.

    Returns:
        8 images of each class in [-1, 1], from different codes, with the requested classes as labels.
    """
    labels = wanted_classes(num_classes)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        decoder = Decoder(size=_CODE, image_shape=(background.shape[1], *background.shape[2:]))
        critic = _critic(background.shape[1])
        ours = torch.optim.Adam(decoder.parameters(), lr=5e-4, betas=(0.5, 0.9))
        theirs = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
        for _ in range(steps):
            real = background[torch.randint(len(background), (64,))]
            drawn = decoder(torch.randn(64, _CODE))
            theirs.zero_grad()
            (F.relu(1 - critic(real)) + F.relu(1 + critic(drawn.detach()))).mean().backward()
            theirs.step()
            ours.zero_grad()
            (-critic(drawn)).mean().backward()
            ours.step()
        for network in (decoder, critic):
            network.eval().requires_grad_(False)
        codes = torch.randn(len(labels), _CODE).requires_grad_()
        optimizer = torch.optim.Adam([codes], lr=0.05)
        for _ in range(search):
            images = decoder(codes)
            loss = F.cross_entropy(model(images), labels, reduction="sum") - _REALISM * critic(images).sum()
            (codes.grad,) = torch.autograd.grad(loss, codes)
            optimizer.step()
    with torch.no_grad():
        return Records(decoder(codes), labels)


def _critic(channels: int) -> nn.Module:
    return nn.Sequential(
        spectral_norm(nn.Conv2d(channels, 32, 3, stride=2, padding=1)), nn.LeakyReLU(0.2),
        spectral_norm(nn.Conv2d(32, 64, 3, stride=2, padding=1)), nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), spectral_norm(nn.Linear(256, 1)),
    )  # fmt: skip
