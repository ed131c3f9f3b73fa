"""Model extraction: a copy through which gradients pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def passes_gradients(model: nn.Module, images: Tensor) -> bool:
    """Whether logits have a gradient with respect to images (N, C, H, W), which fixed features may lack."""
    with torch.enable_grad():
        return bool(model(images.detach().clone().requires_grad_()).requires_grad)


def copied(model: nn.Module, images: Tensor, *, num_classes: int) -> nn.Module:
    """Train a small convolutional network, returned in eval mode, on the model's answers to the attacker's images.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        images: (N, C, H, W).
        num_classes: c.
    """
    with torch.no_grad():
        targets = torch.cat([model(part).float() for part in images.split(500)]).softmax(dim=1)  # also for votes
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(images.shape[1], 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, num_classes),
        )  # fmt: skip
        optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
        for _ in range(400):
            rows = torch.randint(len(images), (64,))
            optimizer.zero_grad()
            F.cross_entropy(network(images[rows]), targets[rows]).backward()
            optimizer.step()
    return network.eval().requires_grad_(False)
