"""Synthetic images that were made once and are learnt from again and again."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ImagePool"]


class ImagePool:
    """The newest images, in half precision on the CPU.

    Args:
        most: How many are kept; the oldest go.
        image_shape: (C, H, W).

    Attributes:
        images: (n, C, H, W), the oldest first.
    """

    def __init__(self, *, most: int, image_shape: tuple[int, int, int]) -> None:
        self.most = most
        self.images = torch.empty(0, *image_shape, dtype=torch.float16)

    def add(self, images: Tensor) -> None:
        """Takes images (N, C, H, W) in."""
        # Cloned: a slice would keep all that it is cut from.
        self.images = torch.cat([self.images, images.detach().cpu().half()])[-self.most :].clone()

    def draw(self, count: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
        """Returns images (count, C, H, W) in float32, drawn with replacement.

        Raises:
            RuntimeError: There are none.
        """
        if not len(self.images):
            raise RuntimeError("the pool holds no image yet")
        return self.images[torch.randint(len(self.images), (count,), generator=generator)].to(device).float()
