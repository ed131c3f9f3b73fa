"""Random views of images for contrastive learning: a whole batch at once, each image with random numbers of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_modules.priors.random_rows import RandomRows
from lightning_modules.setting_checks import check_number

__all__ = ["Views", "random_views_of"]

#: Luma of ITU-R BT.601, as torchvision has it.
_GREY = (0.299, 0.587, 0.114)
#: RGB to YIQ: hue is the angle in the plane of the last two.
_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
_RGB = torch.linalg.inv(torch.tensor(_YIQ)).tolist()
_COLUMNS = 16


@dataclass(frozen=True, kw_only=True)
class Views:
    """What a view may change of an image: what the encoder is to take for the same.

    Defaults are SimCLR's for small photographs (Chen et al. 2020, appendix B.9), with weaker colours and a little blur.

    Attributes:
        area: Smallest share of the image's area that a crop has.
        aspect: Largest ratio of a crop's sides.
        mirror: Probability to mirror left and right.
        jitter: Probability to change the colours at all.
        brightness: Pixels, between 0 and 1, are multiplied by up to 1 ± this.
        contrast: Likewise, distances from the image's mean.
        saturation: Likewise, distances from grey. Has an effect on images of three channels alone, as the next two.
        hue: Turns of the hue at most, up to 0.5.
        grey: Probability to take the colours away.
        blur: Probability to blur.
        blur_width: Largest standard deviation of the blur, in pixels.
        cutout: Probability to cover a square with the image's mean.
        cutout_side: Side of the square in shorter sides of the image.
    """

    area: float = 0.2
    aspect: float = 4 / 3
    mirror: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grey: float = 0.2
    blur: float = 0.2
    blur_width: float = 1.0
    cutout: float = 0.0
    cutout_side: float = 0.4

    def __post_init__(self) -> None:
        for name in ("mirror", "jitter", "grey", "blur", "cutout", "brightness", "contrast", "saturation"):
            check_number(f"views.{name}", getattr(self, name), least=0, most=1)
        check_number("views.area", self.area, above=0, least=0, most=1)
        check_number("views.aspect", self.aspect, least=1, most=4)
        check_number("views.hue", self.hue, least=0, most=0.5)
        check_number("views.blur_width", self.blur_width, above=0)
        check_number("views.cutout_side", self.cutout_side, above=0, least=0, most=1)


@torch.no_grad()
def random_views_of(images: Tensor, settings: Views, *, generator: torch.Generator) -> Tensor:
    """One random view of each image.

    Args:
        images: (N, C, H, W), in [-1, 1].
        settings: What may change.
        generator: The only source of randomness; the numbers of one image are one row of one draw.

    Returns:
        (N, C, H, W) float32 in [-1, 1], on the device of `images`.
    """
    # In half precision a crop would be off by pixels.
    with torch.autocast(images.device.type, enabled=False):
        rows = RandomRows.draw(len(images), _COLUMNS, generator=generator, device=images.device)
        views = _cropped((images.float() + 1) / 2, settings, rows)
        views = _recoloured(views, settings, rows).clamp(0, 1)
        views = _blurred(views, settings, rows)
        return 2 * _covered(views, settings, rows) - 1


def _cropped(images: Tensor, settings: Views, rows: RandomRows) -> Tensor:
    """A part of each image at the size of the whole, half of them mirrored."""
    area = rows.uniform(low=settings.area, high=1.0)
    ratio = torch.exp(rows.uniform(low=-1.0, high=1.0) * math.log(settings.aspect))
    width, height = ((area * one).sqrt().clamp(max=1.0) for one in (ratio, 1 / ratio))
    right, down = rows.uniform(low=-1.0, high=1.0) * (1 - width), rows.uniform(low=-1.0, high=1.0) * (1 - height)
    width = torch.where(rows.uniform() < settings.mirror, -width, width)
    none = torch.zeros_like(width)
    corners = torch.stack([width, none, right, none, height, down], dim=1).unflatten(1, (2, 3))
    grid = F.affine_grid(corners, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _recoloured(images: Tensor, settings: Views, rows: RandomRows) -> Tensor:
    """Brightness, contrast, saturation, hue and loss of colour: of each image one matrix and one offset.

    torchvision draws the order of the four and clamps after each; here it is this one, with one clamp at the end.
    """
    factors = [
        1 + strength * rows.uniform(low=-1.0, high=1.0)
        for strength in (settings.brightness, settings.contrast, settings.saturation)
    ]
    turn = 2 * math.pi * settings.hue * rows.uniform(low=-1.0, high=1.0)
    changed, faded = rows.uniform() < settings.jitter, rows.uniform() < settings.grey
    brightness, contrast, saturation = (torch.where(changed, one, 1.0) for one in factors)
    turn = torch.where(changed, turn, 0.0)
    colours = images.shape[1] == 3
    grey = _grey_of(images).mean(dim=(1, 2, 3)) if colours else images.mean(dim=(1, 2, 3))
    gain = (brightness * contrast)[:, None, None]
    # Greys are what saturation and hue leave as they are, so that the offset is the same in each channel.
    offset = ((1 - contrast) * brightness * grey)[:, None, None, None]
    if not colours:
        return images * gain[..., None] + offset
    luma = images.new_tensor(_GREY).expand(3, 3)
    kept = torch.where(faded, 0.0, saturation)[:, None, None]
    whole = torch.eye(3, device=images.device)
    matrix = gain * (_hue_matrices(turn) @ (luma + kept * (whole - luma)))
    return torch.einsum("nij,njhw->nihw", matrix, images) + offset


def _grey_of(images: Tensor) -> Tensor:
    """(N, 1, H, W) of (N, 3, H, W)."""
    return torch.einsum("j,njhw->nhw", images.new_tensor(_GREY), images).unsqueeze(1)


def _hue_matrices(turn: Tensor) -> Tensor:
    """(N, 3, 3), colours turned about the axis of greys in YIQ, by angles (N,)."""
    to, back = turn.new_tensor(_YIQ), turn.new_tensor(_RGB)
    cosine, sine, none, one = torch.cos(turn), torch.sin(turn), torch.zeros_like(turn), torch.ones_like(turn)
    rotation = torch.stack([one, none, none, none, cosine, -sine, none, sine, cosine], dim=1).unflatten(1, (3, 3))
    matrices: Tensor = back @ rotation @ to
    return matrices


def _blurred(images: Tensor, settings: Views, rows: RandomRows) -> Tensor:
    """Gaussian blur of a width of each image's own, as a matrix along either side."""
    width = rows.uniform(low=0.1, high=1.0) * settings.blur_width
    chosen = rows.uniform() < settings.blur
    if not settings.blur:
        return images
    down, across = (_blur_matrices(width, side) for side in images.shape[2:])
    blurred = down[:, None] @ images @ across[:, None].transpose(-1, -2)
    return torch.where(chosen[:, None, None, None], blurred, images)


def _blur_matrices(width: Tensor, side: int) -> Tensor:
    """(N, side, side), each row a Gaussian of sum 1 about its own pixel."""
    at = torch.arange(side, device=width.device, dtype=width.dtype)
    weights = torch.exp(-((at[:, None] - at) ** 2) / (2 * width[:, None, None] ** 2))
    return weights / weights.sum(dim=-1, keepdim=True)


def _covered(images: Tensor, settings: Views, rows: RandomRows) -> Tensor:
    """A square of some images, anywhere, in their mean colour."""
    chosen = rows.uniform() < settings.cutout
    middles = [rows.uniform() for _ in range(2)]
    if not settings.cutout:
        return images
    half = settings.cutout_side * min(images.shape[2:]) / 2
    inside = [
        (torch.arange(side, device=images.device) + 0.5 - side * middle[:, None]).abs() < half
        for side, middle in zip(images.shape[2:], middles, strict=True)
    ]
    square = _outer(inside) & chosen[:, None, None]
    return torch.where(square[:, None], images.mean(dim=(2, 3), keepdim=True), images)


def _outer(inside: Sequence[Tensor]) -> Tensor:
    """(N, H, W) of (N, H) and (N, W)."""
    rows, columns = inside
    return rows[:, :, None] & columns[:, None, :]
