"""Views of images that a classifier should classify alike: moved by whole pixels, and mirrored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_modules.setting_checks import check_whole_number
from privacy.mechanisms.noise import NoiseSource

__all__ = ["Views", "shifted"]


def shifted(images: Tensor, moves: Tensor) -> Tensor:
    """Images moved by whole pixels, what comes in at the edge is black (-1).

    Args:
        images: (N, C, H, W).
        moves: (N, 2) int64, rows down and columns to the right, negative for up and left.
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


@dataclass(frozen=True, kw_only=True)
class Views:
    """Random views of each record in a step, whose mean gradient is clipped (De et al. 2022, section 3.3).

    Attributes:
        count: Views of a record, K; 0 takes the record as it is.
        shift: Pixels by which a view is moved at most, up or down and to either side.
        flip: Mirror each view left to right with probability 1/2.
    """

    count: int = 0
    shift: int = 2
    flip: bool = False

    def __post_init__(self) -> None:
        check_whole_number("clipping.views.count", self.count, least=0)
        check_whole_number("clipping.views.shift", self.shift, least=0)
        if self.flip and not self.count:
            raise ValueError("clipping.views.flip mirrors views of a record: set clipping.views.count to 1 or more")

    def draw(self, images: Tensor, source: NoiseSource) -> Tensor:
        """The views (N K, C, H, W) of images (N, C, H, W), those of one image in a row; the images where K is 0.

        Which views a record gets must not depend on other records in its batch: a generator that others can seed draws
        by position, and the absence of one record would change the views of all that come after it.

        Args:
            images: (N, C, H, W).
            source: Where the draws come from, three words for each view.
        """
        if not self.count:
            return images
        views = images.repeat_interleave(self.count, dim=0)
        words = source.words(3 * len(views)).reshape(-1, 3)
        moves = torch.from_numpy((words[:, :2] % np.uint64(2 * self.shift + 1)).astype(np.int64)) - self.shift
        views = shifted(views, moves.to(images.device))
        if not self.flip:
            return views
        mirrored = torch.from_numpy((words[:, 2] % np.uint64(2)).astype(bool))
        return torch.where(mirrored.to(images.device)[:, None, None, None], views.flip(-1), views)
