"""Handwriting and characters of any script: Bezier curves drawn with a round pen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.priors.base import RandomRows, RowPrior, between
from privacy.checks import check_choice

_MIN_CANVAS = 28
"""Pixels; below this a pen is thinner than a pixel, so images are drawn larger and averaged over each pixel."""

_IMAGES_AT_ONCE = 32  # on a CPU, so that intermediate results stay in its cache

_FULL_WIDTH_AT_HALF_MAXIMUM = 2 * math.sqrt(2 * math.log(2))


def on_canvas(image_shape: tuple[int, int, int], draw: Callable[[tuple[int, int]], Tensor]) -> Tensor:
    """Returns the ink (B, H, W) of `draw`, a function of (height, width); draws small images larger and averages."""
    _, height, width = image_shape
    zoom = -(-_MIN_CANVAS // min(height, width))
    ink = draw((height * zoom, width * zoom))
    return functional.avg_pool2d(ink[:, None], zoom)[:, 0] if zoom > 1 else ink


def along_curves(controls: Tensor, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Place points about evenly along cubic Bezier curves.

    Args:
        controls: (B, K, 4, 2), control points of K curves: x, y.
        points: P, the number of points per curve.

    Returns:
        Points (B, K, P, 2), derivatives (B, K, P, 2) and steps of the parameter (P,), which sum to 1.
    """
    # A Bezier curve is fastest at its ends: half as long steps there space the points evenly.
    even = (torch.arange(points, device=controls.device) + 0.5) / points
    at = even / 2 + (1 - torch.cos(math.pi * even)) / 4
    step = (0.5 + math.pi / 4 * torch.sin(math.pi * even)) / points
    rest = 1 - at
    # Weights of the control points, and their derivatives: Bernstein polynomials.
    weights = torch.stack([rest**3, 3 * rest**2 * at, 3 * rest * at**2, at**3], 1)
    slopes = torch.stack([-3 * rest**2, 3 * rest**2 - 6 * rest * at, 6 * rest * at - 3 * at**2, 3 * at**2], 1)
    path = torch.einsum("pk,bckd->bcpd", weights, controls)
    speed = torch.einsum("pk,bckd->bcpd", slopes, controls)
    return path, speed, step


def pen_ink(path: Tensor, length: Tensor, *, pen: Tensor, edge: Tensor, size: tuple[int, int]) -> Tensor:
    """Ink (B, H, W), in [0, 1], of a round pen that follows points.

    Args:
        path: (B, P, 2), x and y in pixels.
        length: (B, P), length of the curve that each point stands for, in pixels; 0 hides a point.
        pen: (B,), pen widths in pixels.
        edge: (B,), widths of the soft edge in pixels.
        size: (H, W).
    """
    sigma = (pen / _FULL_WIDTH_AT_HALF_MAXIMUM)[:, None, None]
    weight = length[..., None] / (math.sqrt(2 * math.pi) * sigma)
    at_once = _IMAGES_AT_ONCE if path.device.type == "cpu" else max(1, len(path))
    height = torch.cat(
        [_heights(*piece, size=size) for piece in zip(*(x.split(at_once) for x in (path, weight, sigma)), strict=True)]
    )
    # On a straight stroke `height` is exp(-distance^2 / 2 sigma^2): 1/2 at the pen's edge, with this slope there.
    slope = _FULL_WIDTH_AT_HALF_MAXIMUM / 4 / sigma
    # With an edge softer than 1 / slope, ink would not reach 0 far from the stroke.
    return (0.5 + (height - 0.5) / (slope * edge[:, None, None]).clamp_max(1)).clamp(0, 1)


def _heights(path: Tensor, weight: Tensor, sigma: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Sum of Gaussians at points (B, P, 2) with weights (B, P, 1) and widths `sigma` (B, 1, 1): (B, H, W).

    A Gaussian in the plane is a product of one per axis, so an image is one matrix product, (H, P) times (P, W).
    """

    def along(axis: int, side: int) -> Tensor:
        distance = (torch.arange(side, device=path.device) + 0.5 - path[..., axis, None]).div_(sigma)
        # Cut off at exp(-40), far below what is visible: products of smaller numbers would be denormal, which are many
        # times slower.
        return distance.square_().mul_(-0.5).clamp_min_(-40.0).exp_()

    return torch.bmm(along(1, size[0]).mul_(weight).transpose(1, 2), along(0, size[1]))


_STROKE_POINTS = 32  # per curve: closer than a thin pen's width even where the pen is fastest


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
        controls, joined = rows.uniform(curves, 4, 2), rows.uniform(curves) < self.join_probability
        count, pen, edge, slant, aspect = rows.uniform(5).unbind(1)
        for curve in range(1, curves):
            controls[:, curve, 0] = torch.where(
                joined[:, curve, None], controls[:, curve - 1, 3], controls[:, curve, 0]
            )

        path, speed, step = along_curves(controls, _STROKE_POINTS)
        visible = torch.arange(curves, device=device) < (count * curves).floor().clamp(max=curves - 1)[:, None] + 1
        hidden = ~visible[:, :, None].expand(-1, -1, _STROKE_POINTS).flatten(1)
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


_Polarity = Literal["bright", "dark", "either"]

_GLYPH_POINTS = 40  # per stroke: closer than a thin pen's width even if a stroke crosses the whole image

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
        ValueError: The polarity is unknown.

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
        path, speed, step = along_curves(controls, _GLYPH_POINTS)
        count = least + (rows.uniform(1) * (most + 1 - least)).floor()
        hidden = torch.arange(most, device=count.device) >= count.clamp_max(most)
        return path.flatten(1, 2), speed.flatten(1, 2), step.repeat(most), hidden.repeat_interleave(_GLYPH_POINTS, 1)


def _even_on_log_scale(interval: tuple[float, float], uniform: Tensor) -> Tensor:
    scaled: Tensor = interval[0] * (interval[1] / interval[0]) ** uniform
    return scaled
