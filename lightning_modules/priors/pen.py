"""A round pen that follows Bezier curves."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

_MIN_CANVAS = 28
"""Pixels; below this a pen is thinner than a pixel: draw larger and average the area of each pixel."""

_IMAGES_AT_ONCE = 32  # on a CPU: what they take in between stays in its cache

_FULL_WIDTH_AT_HALF_MAXIMUM = 2 * math.sqrt(2 * math.log(2))


def on_canvas(image_shape: tuple[int, int, int], draw: Callable[[tuple[int, int]], Tensor]) -> Tensor:
    """Ink (B, H, W) that `draw` gives of a height and width, averaged over each pixel where the image is small."""
    _, height, width = image_shape
    zoom = -(-_MIN_CANVAS // min(height, width))
    ink = draw((height * zoom, width * zoom))
    return functional.avg_pool2d(ink[:, None], zoom)[:, 0] if zoom > 1 else ink


def along_curves(controls: Tensor, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points along cubic Bezier curves, spread about evenly.

    Args:
        controls: (B, K, 4, 2), control points of K curves: x, y.
        points: P, of each curve.

    Returns:
        Places (B, K, P, 2), derivatives (B, K, P, 2) and lengths of the steps of the parameter (P,), which sum to 1.
    """
    # A Bezier curve is fastest at its ends: steps half as long there spread the points evenly.
    even = (torch.arange(points, device=controls.device) + 0.5) / points
    at = even / 2 + (1 - torch.cos(math.pi * even)) / 4
    step = (0.5 + math.pi / 4 * torch.sin(math.pi * even)) / points
    path = torch.einsum("pk,bckd->bcpd", _bernstein(at), controls)
    speed = torch.einsum("pk,bckd->bcpd", _bernstein_slope(at), controls)
    return path, speed, step


def pen_ink(path: Tensor, length: Tensor, *, pen: Tensor, edge: Tensor, size: tuple[int, int]) -> Tensor:
    """Ink (B, H, W), in [0, 1], of a round pen along points.

    Args:
        path: (B, P, 2), x and y in pixels.
        length: (B, P), of the curve that each point stands for, in pixels; 0 hides a point.
        pen: (B,), widths in pixels.
        edge: (B,), widths of the soft edge in pixels.
        size: (H, W).
    """
    sigma = (pen / _FULL_WIDTH_AT_HALF_MAXIMUM)[:, None, None]
    weight = length[..., None] / (math.sqrt(2 * math.pi) * sigma)
    at_once = _IMAGES_AT_ONCE if path.device.type == "cpu" else max(1, len(path))
    height = torch.cat(
        [_heights(*piece, size=size) for piece in zip(*(x.split(at_once) for x in (path, weight, sigma)), strict=True)]
    )
    # On a straight stroke `height` is exp(-distance^2 / 2 sigma^2): half at the pen's edge, with this slope there.
    slope = _FULL_WIDTH_AT_HALF_MAXIMUM / 4 / sigma
    # A softer edge than 1 / slope would not reach 0 far from the stroke.
    return (0.5 + (height - 0.5) / (slope * edge[:, None, None]).clamp_max(1)).clamp(0, 1)


def _heights(path: Tensor, weight: Tensor, sigma: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Sum over the points (B, P, 2) of Gaussians of `weight` (B, P, 1) and width `sigma` (B, 1, 1): (B, H, W).

    A Gaussian on the plane is a product of one per axis, so a whole image is one matrix product: (H, P) times (P, W).
    """

    def along(axis: int, side: int) -> Tensor:
        distance = (torch.arange(side, device=path.device) + 0.5 - path[..., axis, None]).div_(sigma)
        # Of exp(-40) at least, the same picture, since ink is 1 at most: far from a stroke products of smaller numbers
        # would be denormal, each of which takes a processor many times as long.
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
