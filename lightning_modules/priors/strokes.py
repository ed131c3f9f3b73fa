"""Procedural handwriting: joined pen strokes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.priors.base import RandomRows, RowPrior, between, check_interval
from lightning_modules.priors.pen import along_curves, on_canvas, pen_ink
from lightning_modules.setting_checks import check_number, check_whole_number

__all__ = ["StrokePrior"]


class StrokePrior(RowPrior):
    """Handwriting without data: a few joined cubic Bezier curves, drawn with a round pen.

    The public knowledge it encodes, and no more: a character is bright ink on a dark ground, made of one to
    `max_curves` smooth strokes that usually touch; it is slanted, is usually not wider than tall, is scaled to a box
    of a known size and put there by its centre of mass. It does not know how many classes there are or what any of
    them looks like.

    Its defaults were chosen by looking: at the mean ink of MNIST and of the 8x8 digits, and at how well students of a
    teacher did on their test images. Those data are public. Tuning settings on private data is an unaccounted
    access to them.

    Lengths are fractions of the box, so that one set of settings serves 8x8 and 28x28 pixels. Pixels are anti-aliased:
    below 28 pixels the image is drawn larger and averaged over each pixel's area. All channels carry the same ink.

    Args:
        max_curves: most curves of one image; each image has 1 to this many with equal probability.
        join_probability: probability that a curve starts where the one before ended.
        pen_width: smallest and largest width of the pen, as fractions of the box.
        blur: smallest and largest width of the soft edge of a stroke, as fractions of the box; never softer than lets a
            thin stroke fade to nothing.
        slant: largest horizontal shear in either direction (0.5 leans by half the height).
        aspect: smallest and largest width of the ink as a fraction of its height; None keeps what the curves happen to
            have.
        box: side of the square that the ink is scaled to, as a fraction of the image's shorter side. None takes what
            the public descriptions of the handwritten data sets say: the whole image below 16 pixels (the 8x8 digits
            fill theirs), 20/28 from 16 pixels on (MNIST puts a 20-pixel box into 28 pixels).

    Raises:
        ValueError: for a setting out of its range.
    """

    POINTS = 32  # per curve: closer than a thin pen's width where the pen is fastest

    def __init__(
        self,
        *,
        max_curves: int = 3,
        join_probability: float = 0.7,
        pen_width: tuple[float, float] = (0.08, 0.2),
        blur: tuple[float, float] = (0.04, 0.1),
        slant: float = 0.3,
        aspect: tuple[float, float] | None = (0.4, 1.0),
        box: float | None = None,
    ) -> None:
        check_whole_number("max_curves", max_curves, least=1, most=16)
        check_number("join_probability", join_probability, least=0, most=1)
        check_number("slant", slant, least=0, most=2)
        if box is not None and not 0 < box <= 1:
            raise ValueError(f"box must be None or lie in (0, 1], got {box!r}")
        self.max_curves = max_curves
        self.join_probability = join_probability
        self.pen_width = check_interval("pen_width", pen_width, most=0.5)
        self.blur = check_interval("blur", blur, most=0.5)
        self.slant = slant
        self.aspect = None if aspect is None else check_interval("aspect", aspect, most=10.0)
        self.box = box

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        """See `RowPrior`."""
        return 9 * self.max_curves + 5

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        """See `RowPrior`."""
        box = self._box_of(image_shape)
        return 2 * on_canvas(image_shape, lambda size: self._ink(rows, size, box)) - 1

    def _box_of(self, image_shape: tuple[int, int, int]) -> float:
        if self.box is not None:
            return self.box
        return 1.0 if min(image_shape[1:]) < 16 else 20 / 28

    def _ink(self, rows: RandomRows, size: tuple[int, int], box: float) -> Tensor:
        """In [0, 1], of shape (B, H, W)."""
        curves, points, device = self.max_curves, self.POINTS, rows.device
        numbers = rows.uniform(9 * curves + 5)
        controls = numbers[:, : 8 * curves].reshape(-1, curves, 4, 2).clone()
        joined = numbers[:, 8 * curves : 9 * curves] < self.join_probability
        count, pen, edge, slant, aspect = numbers[:, 9 * curves :].unbind(1)
        for curve in range(1, curves):
            controls[:, curve, 0] = torch.where(
                joined[:, curve, None], controls[:, curve - 1, 3], controls[:, curve, 0]
            )

        path, speed, step = along_curves(controls, points)
        visible = torch.arange(curves, device=device) < (count * curves).floor().clamp(max=curves - 1)[:, None] + 1
        hidden = ~visible[:, :, None].expand(-1, -1, points).flatten(1)
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
        if self.aspect is None:
            scale = room / extent.amax(1, keepdim=True)
        else:
            ratio = between(self.aspect, aspect)
            scale = room * torch.stack([ratio, torch.ones_like(ratio)], 1) / ratio.clamp_min(1)[:, None] / extent
        path = (path - low[:, None]) * scale[:, None]
        extent = extent * scale
        # A point's ink is the length of curve that it stands for: where the pen moves fast the points lie far apart.
        length = ((speed * scale[:, None]).norm(dim=2) * step.repeat(curves)).masked_fill(hidden, 0)

        mass = (path * length[..., None]).sum(1) / length.sum(1).clamp_min(1e-9)[:, None]
        frame = torch.tensor([size[1], size[0]], dtype=path.dtype, device=device)
        corner = frame / 2 - mass
        least = pen[:, None] / 2
        corner = torch.minimum(torch.maximum(corner, least), (frame - extent - least).clamp_min(0))
        path = path + corner[:, None]

        return pen_ink(path, length, pen=pen, edge=edge, size=size)
