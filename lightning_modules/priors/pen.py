"""Draws Bezier curves with a round pen."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_MIN_CANVAS = 28
"""Pixels; below this a pen is thinner than a pixel, so images are drawn larger and averaged over each pixel."""

_IMAGES_AT_ONCE = 32  # on a CPU, so that intermediate results stay in its cache

_FULL_WIDTH_AT_HALF_MAXIMUM = 2 * math.sqrt(2 * math.log(2))


def on_canvas(image_shape: tuple[int, int, int], draw: Callable[[tuple[int, int]], Tensor]) -> Tensor:
    """Return the ink (B, H, W) of `draw`, a function of (height, width); small images are drawn larger and averaged."""
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
    path = torch.einsum("pk,bckd->bcpd", _bernstein(at), controls)
    speed = torch.einsum("pk,bckd->bcpd", _bernstein_slope(at), controls)
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


def _bernstein(t: Tensor) -> Tensor:
    """Weights (P, 4) of a cubic Bezier curve's control points at the parameters `t` (P,)."""
    u = 1 - t
    return torch.stack([u**3, 3 * u**2 * t, 3 * u * t**2, t**3], 1)


def _bernstein_slope(t: Tensor) -> Tensor:
    """Derivatives (P, 4) of `_bernstein`."""
    u = 1 - t
    return torch.stack([-3 * u**2, 3 * u**2 - 6 * u * t, 6 * u * t - 3 * t**2, 3 * t**2], 1)
