"""Images that a classifier should classify alike: moved by whole pixels."""

from __future__ import annotations

import torch
from torch import Tensor


def shifted(images: Tensor, moves: Tensor) -> Tensor:
    """Images (N, C, H, W) moved by whole pixels; what comes in at the edge is black (-1).

    `moves` are (N, 2) int64: rows down and columns to the right, negative for up and left.
    """
    rows, columns = (
        torch.arange(size, device=images.device) - moves[:, axis, None] for axis, size in enumerate(images.shape[2:])
    )
    height, width = images.shape[2:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    number = torch.arange(len(images), device=images.device)[:, None, None]
    # (N, H, W, C): an index on each side of the channels puts them last.
    moved = images[number, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    return torch.where(inside[:, None], moved.permute(0, 3, 1, 2), -1.0)
