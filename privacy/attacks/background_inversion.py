"""Inversion with background knowledge (Yang, Zhang, Chang and Liang 2019, "Neural network inversion")."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privacy.attacks.answers import Records
from privacy.attacks.drawing import PER_CLASS, Decoder, wanted_classes

_LEAST = -12.0
"""Logarithms of smaller probabilities count as this one: the paper's truncation."""


def background_inversion(
    model: nn.Module,
    *,
    background: Tensor,
    num_classes: int,
    steps: int = 400,
) -> Records:
    """Learns to draw an image out of the model's answer on images of the attacker's own, then asks it for a class.

    Threat model: the attacker sees probabilities, for images that it has: similar ones, or procedural ones.

    Args:
        model: (N, C, H, W) to logits (N, c), in eval mode.
        background: (N, C, H, W) in [-1, 1], the attacker's images.
        num_classes: c.
        steps: Of Adam, on 64 images each.

    Returns:
        8 images of each class in [-1, 1], of growing certainty, and the classes asked for.
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
    # What is left for the other classes: from a tenth to what is cut off.
    left = torch.linspace(math.log(0.1), _LEAST, PER_CLASS).exp().repeat(num_classes)[:, None]
    asked = torch.where(F.one_hot(labels, num_classes).bool(), 1 - left, left / (num_classes - 1))
    with torch.no_grad():
        return Records(decoder.eval()(asked.log().clamp_min(_LEAST)), labels)
