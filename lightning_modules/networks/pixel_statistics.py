"""Images with stated statistics: what a generator that standardises its output needs to reach a teacher's input."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ScaledOutput"]


class ScaledOutput(nn.Module):
    """Scales and shifts each channel of a network's images: x · scale + shift.

    A generator that ends in BatchNorm without weights, as DAFL's does, gives pixels of mean 0 and standard deviation 1
    whatever it learns, and those of images in [-1, 1] differ (MNIST: -0.74 and 0.62). It can make such images where
    `scale` is their standard deviation and `shift` their mean.

    Both are buffers: a checkpoint keeps those of its run.

    Args:
        network: Gives images (N, C, H, W).
        scale: C factors.
        shift: C summands.
        standardise: Bring the network's images to mean 0 and standard deviation 1 first, per channel and over the
            batch; for a network that does not end so by itself.

    Raises:
        ValueError: Other numbers of factors and summands, a factor that is not positive, or one that is not finite.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, network: nn.Module, *, scale: Sequence[float], shift: Sequence[float], standardise: bool = False
    ) -> None:
        super().__init__()
        if len(scale) != len(shift) or not scale:
            raise ValueError(f"scale and shift must have one number for each channel, got {scale!r} and {shift!r}")
        if not all(math.isfinite(value) for value in (*scale, *shift)) or min(scale) <= 0:
            raise ValueError(f"scale must be above 0, and scale and shift finite, got {scale!r} and {shift!r}")
        self.network = network
        self.standardised = nn.BatchNorm2d(len(scale), affine=False) if standardise else nn.Identity()
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32)[:, None, None])
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32)[:, None, None])

    @property
    def latent_dim(self) -> int:
        """Width of the network's input."""
        return int(getattr(self.network, "latent_dim"))  # noqa: B009 - nn.Module types every attribute as a tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """What the network makes of its inputs (N, …), scaled: images (N, C, H, W)."""
        images: Tensor = self.standardised(self.network(inputs)) * self.scale + self.shift
        return images
