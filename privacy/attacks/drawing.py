"""Shared parts of inversion attacks: the decoder, the requested classes and a classifier's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PER_CLASS = 8
"""Number of images per class."""


class Decoder(nn.Module):
    """Maps codes (N, `size`) to images (N, C, H, W) in [-1, 1]: dense, then upsampled and convolved twice."""

    def __init__(self, *, size: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        width = 32
        self.image_shape = image_shape
        self.start = (2 * width, -(-image_shape[1] // 4), -(-image_shape[2] // 4))
        self.project = nn.Linear(size, self.start[0] * self.start[1] * self.start[2])
        self.first = nn.Sequential(
            nn.BatchNorm2d(2 * width), nn.ReLU(), nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width)
        )
        self.last = nn.Sequential(nn.ReLU(), nn.Conv2d(width, image_shape[0], 3, padding=1), nn.Tanh())

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes (N, size) to images (N, C, H, W)."""
        grown = F.interpolate(self.project(codes).unflatten(1, self.start), scale_factor=2.0)
        images: Tensor = self.last(F.interpolate(self.first(grown), size=self.image_shape[1:]))
        return images


def wanted_classes(num_classes: int) -> Tensor:
    """Labels (c · PER_CLASS,) to draw, grouped by class."""
    return torch.arange(num_classes).repeat_interleave(PER_CLASS)


def features_of(model: nn.Module, images: Tensor) -> Tensor:
    """Map images (N, C, H, W) to the inputs (N, F) of a classifier's last linear layer.

    Raises:
        ValueError: It has no linear layer.
    """
    last = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not last:
        raise ValueError(f"the classifier must have a linear layer, and {type(model).__name__} has none")
    seen: list[Tensor] = []
    hook = last[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        model(images)
    finally:
        hook.remove()
    return torch.cat(seen).flatten(1)
