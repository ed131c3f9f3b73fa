"""Characters of any script: pen strokes of varying number, framing, thickness and contrast."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_modules.priors.base import RandomRows, RowPrior, between
from lightning_modules.priors.pen import along_curves, on_canvas, pen_ink
from lightning_modules.setting_checks import check_choice

_Polarity = Literal["bright", "dark", "either"]

_POINTS = 40  # per stroke: closer than a thin pen's width even if a stroke crosses the whole image

#: Largest ratio of the scales of width and height, so that a bar stays a bar.
_MOST_STRETCH = 2.5


class GlyphPrior(RowPrior):
    """Characters without data, varied in everything that is not known about the private ones.

    While `StrokePrior` assumes the box and the pen of the data sets that it was made for, images of this prior vary:
    few or many strokes, long or short, straight or bent, sometimes closed to a loop; thin, thick or soft; faint or at
    full contrast; filling the frame or small in it, centred or not. A student loses little if many images are unlike
    the private ones, but a lot if none is like them. Defaults were chosen on data derived from MNIST for this purpose
    (digits cropped to 16x16 pixels, overlaid digits), not on the data sets that the prior is meant for.

    Lengths are fractions, so that they fit any size. Below 28 pixels images are drawn larger and averaged over each
    pixel's area. All channels carry the same ink.

    Args:
        polarity: `bright` ink on a dark ground, `dark` ink on a bright ground, or `either`, half of each.

    Raises:
        ValueError: for another polarity.

    Attributes:
        strokes: smallest and largest number of strokes in an image.
        reach: shortest and longest reach of an image's strokes, as a fraction of the plane that their first points lie
            in; short strokes leave many separate parts.
        join_probability: probability that a stroke starts where the previous one ended.
        loop_probability: probability that a stroke ends where it started.
        pen_width: smallest and largest pen width as fractions of the box's shorter side, log-uniform.
        blur: smallest and largest width of a stroke's soft edge as fractions of the image's shorter side, log-uniform.
        slant: largest horizontal shear in either direction.
        side: smallest and largest width and height of the box as fractions of the image's.
        fill_probability: probability that the box is the whole image, as in data cropped to their content.
        ink: smallest and largest contrast of the half of the images that are not at full contrast.
    """

    strokes = (1, 8)
    reach = (0.35, 1.0)
    join_probability = 0.65
    loop_probability = 0.2
    pen_width = (0.06, 0.22)
    blur = (0.03, 0.12)
    slant = 0.3
    side = (0.6, 1.0)
    fill_probability = 0.5
    ink = (0.5, 1.0)

    def __init__(self, *, polarity: _Polarity = "bright") -> None:
        check_choice("polarity", polarity, get_args(_Polarity))
        self.polarity: _Polarity = polarity

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        return 11 * self.strokes[1] + 15

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        ink = on_canvas(image_shape, lambda size: self._ink(rows, size))
        faint, level, turned = rows.uniform(3)[..., None, None].unbind(1)
        ink = ink * torch.where(faint < 0.5, between(self.ink, level), 1.0)
        dark = turned < {"bright": 0.0, "dark": 1.0, "either": 0.5}[self.polarity]
        return torch.where(dark, -1.0, 1.0) * (2 * ink - 1)

    def _ink(self, rows: RandomRows, size: tuple[int, int]) -> Tensor:
        """Ink in [0, 1] of shape (B, H, W)."""
        path, speed, step, hidden = self._strokes(rows)
        lean = rows.uniform(1, low=-self.slant, high=self.slant)
        path[..., 0] -= lean * path[..., 1]
        speed[..., 0] -= lean * speed[..., 1]

        frame = torch.tensor([size[1], size[0]], dtype=path.dtype, device=path.device)
        filled = rows.uniform(1) < self.fill_probability
        box = torch.where(filled, 1.0, rows.uniform(2, low=self.side[0], high=self.side[1])) * frame
        pen = box.amin(1) * _even_on_log_scale(self.pen_width, rows.uniform(1)[:, 0])
        edge = min(size) * _even_on_log_scale(self.blur, rows.uniform(1)[:, 0])
        low = path.masked_fill(hidden[..., None], math.inf).amin(1)
        extent = (path.masked_fill(hidden[..., None], -math.inf).amax(1) - low).clamp_min(1e-3)
        scale = (box - pen[:, None]).clamp_min(0) / extent
        scale = torch.minimum(scale, _MOST_STRETCH * scale.amin(1, keepdim=True))
        path, extent = (path - low[:, None]) * scale[:, None], extent * scale
        length = ((speed * scale[:, None]).norm(dim=2) * step).masked_fill(hidden, 0)

        # A quarter are centred in the frame by their box, a quarter by their centre of mass, the rest lie anywhere.
        mass = (path * length[..., None]).sum(1) / length.sum(1).clamp_min(1e-9)[:, None]
        least = pen[:, None] / 2
        most = torch.maximum(frame - extent - least, least)
        way, anywhere = rows.uniform(1), least + (most - least) * rows.uniform(2)
        corner = torch.where(way < 0.25, (frame - extent) / 2, torch.where(way < 0.5, frame / 2 - mass, anywhere))
        path = path + torch.minimum(torch.maximum(corner, least), most)[:, None]
        return pen_ink(path, length, pen=pen, edge=edge, size=size)

    def _strokes(self, rows: RandomRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Points of all strokes (B, P, 2), derivatives there, steps of the parameter (P,), and which are hidden."""
        least, most = self.strokes
        starts = rows.uniform(most, 2)
        moves = rows.uniform(most, 3, 2, low=-1, high=1) * rows.uniform(1, 1, 1, low=self.reach[0], high=self.reach[1])
        joined = rows.uniform(most, 1) < self.join_probability
        end = torch.where(rows.uniform(most, 1) < self.loop_probability, 0.0, moves[:, :, 2])
        # From straight to fully bent by its control points.
        bend = rows.uniform(most, 1).sqrt()
        bends = [end * share + (moves[:, :, at] - end * share) * bend for at, share in ((0, 1 / 3), (1, 2 / 3))]
        begins = [starts[:, 0]]
        for stroke in range(1, most):
            begins.append(torch.where(joined[:, stroke], begins[-1] + end[:, stroke - 1], starts[:, stroke]))
        controls = torch.stack([torch.zeros_like(end), *bends, end], 2) + torch.stack(begins, 1)[:, :, None]
        path, speed, step = along_curves(controls, _POINTS)
        count = least + (rows.uniform(1) * (most + 1 - least)).floor()
        hidden = torch.arange(most, device=count.device) >= count.clamp_max(most)
        return path.flatten(1, 2), speed.flatten(1, 2), step.repeat(most), hidden.repeat_interleave(_POINTS, 1)


def _even_on_log_scale(interval: tuple[float, float], uniform: Tensor) -> Tensor:
    scaled: Tensor = interval[0] * (interval[1] / interval[0]) ** uniform
    return scaled
