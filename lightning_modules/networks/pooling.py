"""Max-pooling that remembers no positions where no gradient will ask for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["MaxPool2x2"]


class MaxPool2x2(nn.MaxPool2d):
    """`nn.MaxPool2d(2)`, to the bit, in half of the time on a CPU where no gradient is wanted.

    torch's writes the position of each maximum, in 64 bits, whether or not there will be a backward pass.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C, H // 2, W // 2), the largest of each 2x2 pixels."""
        if images.device.type != "cpu" or (torch.is_grad_enabled() and images.requires_grad):
            pooled: Tensor = super().forward(images)
            return pooled
        height, width = images.shape[-2] // 2 * 2, images.shape[-1] // 2 * 2
        rows = torch.maximum(images[..., 0:height:2, :width], images[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])
