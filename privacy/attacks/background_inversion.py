"""Inversion with background knowledge (Yang, Zhang, Chang and Liang 2019, "Neural network inversion")."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privacy.attacks.answers import Records
from privacy.attacks.drawing import PER_CLASS, Decoder, wanted_classes

_LEAST = -12.0
"""Smallest log-probability; smaller ones are truncated, as in the paper."""


def background_inversion(model: nn.Module, *, background: Tensor, num_classes: int, steps: int = 400) -> Records:
    """Learn to reconstruct the attacker's images from the model's outputs, then decode the outputs of each class.

    Threat model: the attacker sees the model's probabilities for its own images, similar or procedural ones.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        background: (N, C, H, W) in [-1, 1], the attacker's images.
        num_classes: c.
        steps: Steps of Adam, on 64 images each.

    Returns:
        8 images of each class in [-1, 1], of increasing certainty, with the requested classes as labels.
    """
    with torch.no_grad():
        codes = torch.cat([model(part) for part in background.split(500)]).log_softmax(dim=1).clamp_min(_LEAST)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        decoder = Decoder(size=num_classes, image_shape=(background.shape[1], *background.shape[2:]))
        optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-3)
        for _ in range(steps):
            rows = torch.randint(len(background), (64,))
            optimizer.zero_grad()
            F.mse_loss(decoder(codes[rows]), background[rows]).backward()
            optimizer.step()
    labels = wanted_classes(num_classes)
    # Probability of all other classes together, from 0.1 down to the truncation.
    left = torch.linspace(math.log(0.1), _LEAST, PER_CLASS).exp().repeat(num_classes)[:, None]
    asked = torch.where(F.one_hot(labels, num_classes).bool(), 1 - left, left / (num_classes - 1))
    with torch.no_grad():
        return Records(decoder.eval()(asked.log().clamp_min(_LEAST)), labels)
