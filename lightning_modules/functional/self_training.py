"""Learning from images without labels: pseudo-labels that have to survive a distortion (Sohn et al. 2020, FixMatch)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def pseudo_label_loss(logits: Tensor, guide_logits: Tensor, *, threshold: float) -> Tensor:
    """Cross-entropy of distorted images to what the guide thinks of the plain ones, where it is certain.

    Args:
        logits: of distorted images, (N, c).
        guide_logits: of the same images as they are, (N, c); no gradient flows into them.
        threshold: probability from which on the guide's class counts, in [0, 1].

    Returns:
        Scalar: the sum over rows that count, divided by all N.

    Raises:
        ValueError: The shapes differ or the threshold is out of range.
    """
    if logits.dim() != 2 or logits.shape != guide_logits.shape:
        raise ValueError(
            f"logits and guide_logits must have one shape (N, c), got {tuple(logits.shape)} and"
            f" {tuple(guide_logits.shape)}"
        )
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
    certainty, labels = guide_logits.detach().softmax(1).max(1)
    rows = functional.cross_entropy(logits, labels, reduction="none")
    return (rows * (certainty >= threshold)).mean()


def distort(images: Tensor, *, strength: float, draw: torch.Generator) -> Tensor:
    """Random rotation, shear, scale, shift, noise and an erased square, each image its own.

    At strength 1: rotation up to 20 degrees, shear and scale up to 20 %, shifts up to 12 % of a side, noise of
    deviation 0.2, and a square of a quarter of the side set to the image's own smallest value.

    Args:
        images: (N, C, H, W).
        strength: factor on all of it; 0 returns the images.
        draw: the only source of randomness.

    Returns:
        (N, C, H, W).

    Raises:
        ValueError: `strength` is negative.
    """
    if strength < 0:
        raise ValueError(f"strength must be 0 or more, got {strength}")
    if strength == 0:
        return images
    rows, _, height, width = images.shape
    numbers = (2 * torch.rand(rows, 9, generator=draw, device=draw.device) - 1).to(images)
    angle, shear, wide, high, right, down = (numbers * strength)[:, :6].unbind(1)
    angle = angle * (20 * math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    wide, high = 1 + 0.2 * wide, 1 + 0.2 * high
    top = torch.stack([wide * cos, high * (0.2 * shear - sin), 0.24 * right], 1)
    bottom = torch.stack([wide * sin, high * cos, 0.24 * down], 1)
    grid = functional.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    noise = torch.randn(images.shape, generator=draw, device=draw.device).to(images)
    moved = moved + 0.2 * strength * noise
    side = min(0.5, 0.25 * strength)
    column = torch.linspace(-1, 1, width, device=images.device)[None, None, :] - numbers[:, 6, None, None]
    row = torch.linspace(-1, 1, height, device=images.device)[None, :, None] - numbers[:, 7, None, None]
    erased = ((column.abs() < side) & (row.abs() < side))[:, None]
    return torch.where(erased, images.amin(dim=(1, 2, 3), keepdim=True), moved)
