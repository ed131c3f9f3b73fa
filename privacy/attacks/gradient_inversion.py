"""Inversion by gradient (Fredrikson, Jha and Ristenpart 2015, "Model inversion attacks", MI-Face)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from privacy.attacks.answers import Records
from privacy.attacks.drawing import wanted_classes


@torch.enable_grad()
def gradient_inversion(
    model: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], steps: int = 200
) -> Records:
    """Optimise nearly grey images until the model assigns them to the requested class.

    Threat model: the attacker has the published weights and only knows that neighbouring pixels are similar.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        num_classes: c.
        image_shape: Channels, height, width.
        steps: Steps of Adam.

    Returns:
        8 images of each class in [-1, 1], from different starts, with the requested classes as labels.
    """
    labels = wanted_classes(num_classes)
    draw = torch.Generator().manual_seed(0)
    images = (0.1 * torch.randn(len(labels), *image_shape, generator=draw)).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=0.05)
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        rough = images.diff(dim=2).abs().mean(dim=(1, 2, 3)) + images.diff(dim=3).abs().mean(dim=(1, 2, 3))
        (images.grad,) = torch.autograd.grad(loss + rough.sum(), images)
        optimizer.step()
        with torch.no_grad():
            images.clamp_(-1, 1)
    return Records(images.detach(), labels)
