"""Dead leaves: shapes of all sizes that occlude one another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.priors.base import RandomRows, RowPrior
from lightning_modules.priors.colours import palette, palette_numbers

_PER_LEAF = 12


class DeadLeavesPrior(RowPrior):
    """Discs, rectangles and triangles that occlude one another, with power-law sizes and colours of one palette.

    It encodes only this public knowledge: photographs show surfaces with sharp edges that occlude what is behind them;
    sizes are scale-free (density r^-3: Lee, Mumford and Huang 2001); colours in an image are related; surfaces are
    shaded and sometimes textured. It knows no objects.

    Baradad et al. (2021), "Learning to See by Looking at Noise", use such images for pre-training. Their leaves cover
    the image; here `leaves` leaves are painted on a background, the last one in front.

    Defaults were chosen by inspection. Sizes are fractions of the image's shorter side, so that they fit 8x8 as well as
    64x64 pixels.

    Attributes:
        leaves: number of leaves in an image.
        size: smallest and largest radius.
        power: exponent of the density of radii, 3 in photographs.
        texture: probability that a leaf is striped.
    """

    leaves = 32
    size = (0.08, 0.8)
    power = 3.0
    texture = 0.3

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        return palette_numbers(image_shape[0]) + _PER_LEAF * (self.leaves + 1)

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        channels, height, width = image_shape
        at = rows.uniform(self.leaves + 1)
        colours = palette(rows, at, channels=channels)[..., None, None]
        numbers = rows.uniform(self.leaves + 1, _PER_LEAF - 1)
        side = min(height, width)
        y = ((torch.arange(height, device=at.device) + 0.5 - height / 2) / side)[:, None]
        x = ((torch.arange(width, device=at.device) + 0.5 - width / 2) / side)[None]
        image = at.new_zeros(len(at), channels, height, width)
        for leaf in range(self.leaves + 1):
            mask, paint = self._leaf(numbers[:, leaf], x, y, side, room=(width / side, height / side))
            if leaf == 0:
                mask = torch.ones_like(mask)  # the background
            image = image + mask[:, None] * (colours[:, leaf] * paint[:, None] - image)
        return 2 * image - 1

    def _leaf(
        self, numbers: Tensor, x: Tensor, y: Tensor, side: int, *, room: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Mask of one leaf per image, with edges one pixel wide, and its shading, both (B, H, W)."""
        columns = numbers[:, :, None, None].unbind(1)
        kind, center_x, center_y, turn, size, aspect, slope, striped, pitch, phase, strength = columns
        radius = self._radius(size)
        far_x = x - (room[0] + 2 * radius) * (center_x - 0.5)
        far_y = y - (room[1] + 2 * radius) * (center_y - 0.5)
        cosine, sine = torch.cos(2 * math.pi * turn), torch.sin(2 * math.pi * turn)
        along = (cosine * far_x + sine * far_y) / radius
        beside = (cosine * far_y - sine * far_x) / radius / (0.5 + 0.5 * aspect)
        disc = (along**2 + beside**2).sqrt()
        box = torch.maximum(along.abs(), beside.abs())
        triangle = 1.4 * torch.maximum(-along, along / 2 + math.sqrt(0.75) * beside.abs())
        far = torch.where(kind < 1 / 3, disc, torch.where(kind < 2 / 3, box, triangle))
        mask = ((1 - far) * radius * (0.5 + 0.5 * aspect) * side + 0.5).clamp(0, 1)
        stripes = torch.sin((4 + 14 * pitch) * along + 2 * math.pi * phase)
        amount = torch.where(striped < self.texture, 0.1 + 0.3 * strength, 0.0)
        return mask, 1 + 0.5 * (slope - 0.5) * along.clamp(-1, 1) + amount * stripes

    def _radius(self, uniform: Tensor) -> Tensor:
        """Radii with density r^-power between the two sizes, by the inverse CDF."""
        low, high = self.size
        slope = 1 - self.power
        radius: Tensor = (low**slope + uniform * (high**slope - low**slope)) ** (1 / slope)
        return radius
