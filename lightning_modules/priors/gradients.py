"""Smooth colour gradients: skies, walls, light that falls off."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.priors.base import RandomRows, RowPrior

_KINDS = 3


class GradientPrior(RowPrior):
    """Multi-stop gradients of random colours along a line, around a point, or over a gently bent field.

    The public knowledge it encodes, and no more: large parts of a photograph change slowly, in brightness more than in
    hue. It draws no edge and no object; by itself it says little, and is meant as a part of a `MixturePrior`, where it
    shows a student how the teacher answers far from every object.

    Its defaults were chosen by looking.

    Attributes:
        stops: smallest and largest number of colours of one image.
        bend: largest bending of the lines of equal colour, in half image sides.
    """

    stops = (2, 5)
    bend = 0.5

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        return 13 + self.stops[1] * (image_shape[0] + 2)

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        channels, height, width = image_shape
        most = self.stops[1]
        count = rows.uniform(1, low=self.stops[0], high=self.stops[1] + 1).floor().clamp(max=most)
        field = self._field(rows, height, width)
        # Places of the stops: increasing, never closer than a small step, the last one in use at 1.
        gaps = 0.15 + rows.uniform(most)
        used = torch.arange(most, device=gaps.device) < count
        # No cumsum: on a GPU it is refused under `trainer.deterministic`.
        place = ((gaps * used)[:, None] * torch.ones(most, most, device=gaps.device).tril()).sum(2)
        place = (place - place[:, :1]) / (place[:, -1:] - place[:, :1])
        bright, vivid = rows.uniform(most, 1), rows.uniform(1, 1, high=0.8)
        colours = (bright + vivid * rows.uniform(most, channels, low=-0.5, high=0.5)).clamp(0, 1)
        image = colours[:, 0, :, None, None].expand(-1, -1, height, width)
        for stop in range(1, most):
            begin, end = place[:, stop - 1, None, None], place[:, stop, None, None]
            share = ((field - begin) / (end - begin).clamp_min(1e-3)).clamp(0, 1)
            share = (share * share * (3 - 2 * share) * used[:, stop, None, None])[:, None]
            image = image + share * (colours[:, stop] - colours[:, stop - 1])[:, :, None, None]
        return 2 * image - 1

    def _field(self, rows: RandomRows, height: int, width: int) -> Tensor:
        """What the colours follow, (B, H, W), over [0, 1] in every image."""
        numbers = rows.uniform(10)[:, :, None, None].unbind(1)
        kind, turn, center_x, center_y, squeeze, bend, pitch_x, pitch_y, phase, _ = numbers
        down = (torch.arange(height, device=kind.device) + 0.5) / height * 2 - 1
        across = (torch.arange(width, device=kind.device) + 0.5) / width * 2 - 1
        y, x = torch.meshgrid(down, across, indexing="ij")
        wave = torch.sin(4 * (pitch_x - 0.5) * x + 4 * (pitch_y - 0.5) * y + 2 * math.pi * phase)
        cosine, sine = torch.cos(2 * math.pi * turn), torch.sin(2 * math.pi * turn)
        line = cosine * x + sine * y
        bent = line + self.bend * bend * wave
        far_x, far_y = x - 2.4 * (center_x - 0.5), y - 2.4 * (center_y - 0.5)
        along, beside = cosine * far_x + sine * far_y, cosine * far_y - sine * far_x
        round_ = (along**2 + (beside * (0.4 + 1.2 * squeeze)) ** 2).sqrt()
        which = (kind * _KINDS).floor()
        field = torch.where(which == 0, line, torch.where(which == 1, bent, round_))
        low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
        return (field - low) / (high - low).clamp_min(1e-6)
