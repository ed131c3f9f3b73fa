"""Colour images with statistics of photographs: dead leaves, and fractals in front of noise with their spectrum."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.priors.base import RandomRows, RowPrior

HARMONICS = 4


def palette_numbers(channels: int) -> int:
    """Number of random numbers per image in `palette`."""
    return 2 * HARMONICS * (channels + 1) + channels + 4


def palette(rows: RandomRows, at: Tensor, *, channels: int) -> Tensor:
    """Colours (B, N, C) in [0, 1] from a random palette per image, whose spectrum decays with frequency k as 1/k.

    A palette has a brightness curve, which all channels share, and a usually weaker tint curve per channel: in
    photographs brightness varies far more than hue.

    Args:
        rows: random numbers of each image, see `palette_numbers`.
        at: (B, N), positions along the palette, whose period is 1.
        channels: C.
    """
    mean = rows.uniform(1, low=0.15, high=0.85) + rows.uniform(channels, low=-0.5, high=0.5) * rows.uniform(1) ** 2
    contrast, colourful = rows.uniform(1, low=0.1, high=0.4), 0.4 * rows.uniform(1) ** 2
    steps = torch.arange(1, HARMONICS + 1, device=at.device)
    height = rows.normal(HARMONICS, channels + 1) / steps[:, None]
    phase = rows.uniform(HARMONICS, channels + 1)
    turns = (at[:, :, None] * steps)[..., None] + phase[:, None]  # (B, N, K, C + 1)
    curves = (height[:, None] * torch.sin(2 * math.pi * turns)).sum(2)
    strength = torch.cat([contrast, colourful.expand(-1, channels)], 1)[:, None]
    curves = curves * strength
    return (mean[:, None] + curves[..., :1] + curves[..., 1:]).clamp(0, 1)


def tone(rows: RandomRows, fields: Tensor) -> Tensor:
    """Turns fields into images (B, C, H, W) in [0, 1] with random tints, mean and contrast and correlated channels.

    Args:
        rows: random numbers of each image, of which C² + C + 3 are taken.
        fields: (B, C + 1, H, W), independent, with mean 0 and standard deviation 1; the first is brightness.
    """
    channels = fields.shape[1] - 1
    mixing = rows.normal(channels, channels) / math.sqrt(channels)
    strength = rows.uniform(1, low=0.1, high=0.7)[:, 0]
    # Channels share the brightness and differ by weaker tints.
    tints = strength[:, None, None, None] * torch.einsum("bij,bjhw->bihw", mixing, fields[:, 1:])
    colours = fields[:, :1] + tints
    mean = rows.uniform(1, low=0.25, high=0.75) + rows.uniform(channels, low=-0.2, high=0.2)
    contrast = rows.uniform(1, low=0.1, high=0.3)[..., None, None]
    return (mean[:, :, None, None] + contrast * colours).clamp(0, 1)


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
        # By the inverse CDF of their density r^-power between the two sizes.
        low, high = (one ** (1 - self.power) for one in self.size)
        radius = (low + size * (high - low)) ** (1 / (1 - self.power))
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


_MAPS = 4  # most affine maps of one fractal
_WALKERS, _STEPS, _SETTLE = 128, 40, 8  # parallel walkers, steps of each, and initial steps that are not drawn
_SMOOTH_FROM = 16  # pixels per side


class FractalPrior(RowPrior):
    """Colour noise with a 1/f^α amplitude spectrum, in some images behind the fractal of an iterated function system.

    It encodes only this public knowledge: amplitudes of photographs decay with frequency as 1/f^α with α around 1
    (Field 1987), colour channels are correlated, and natural shapes are self-similar. It knows no objects.

    The noise is the *spectrum* model of Baradad et al. (2021), "Learning to See by Looking at Noise"; the fractals are
    those of Kataoka et al. (2020), "Pre-training without Natural Images": 2 to 4 affine maps, drawn by the chaos game.
    Maps are made contracting by their singular values, as in Anderson and Farrell (2022), "Improving Fractal
    Pre-training", so that none has to be rejected.

    The default α is that of Baradad et al.; other defaults were chosen by inspection.

    Attributes:
        exponent: smallest and largest α; 0 is white noise.
        fractal_probability: probability that an image has a fractal in front of the noise.
    """

    exponent = (0.5, 3.5)
    fractal_probability = 0.5

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        channels, height, width = image_shape
        noise_numbers = (channels + 1) * height * width + channels**2 + channels + 5
        walk_numbers = _MAPS * 7 + 1 + _WALKERS * _STEPS
        return noise_numbers + walk_numbers + palette_numbers(channels) + 2

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        channels, height, width = image_shape
        exponent = rows.uniform(1, low=self.exponent[0], high=self.exponent[1])[:, 0]
        image = tone(rows, power_law_noise(rows.normal(channels + 1, height, width), exponent))
        drawn = (rows.uniform(1)[:, 0] < self.fractal_probability).nonzero()[:, 0]
        if len(drawn):
            rows = rows.only(drawn)
            trace = _trace(rows, height, width)
            ink = (trace * (1.5 + rows.uniform(1, 1))).clamp(0, 1)[:, None]
            # Colours show how often a pixel is visited, as usual for fractals.
            colours = palette(rows, trace.flatten(1), channels=channels).mT.unflatten(2, (height, width))
            image[drawn] = image[drawn] * (1 - ink) + colours * ink
        return 2 * image - 1


def power_law_noise(white: Tensor, exponent: Tensor) -> Tensor:
    """Filter standard normal noise (B, K, H, W) to a 1/f^α amplitude spectrum, mean 0 and standard deviation 1.

    `exponent` has one α per image, (B,). A field with a single pixel becomes 0.
    """
    height, width = white.shape[-2:]
    down = torch.fft.fftfreq(height, device=white.device)
    across = torch.fft.rfftfreq(width, device=white.device)
    frequency = (down[:, None] ** 2 + across[None] ** 2).sqrt()
    mean_free = frequency > 0
    gain = torch.where(mean_free, frequency.clamp_min(1e-6), 1.0)[None] ** -exponent[:, None, None] * mean_free
    noise: Tensor = torch.fft.irfft2(torch.fft.rfft2(white) * gain[:, None], s=(height, width))
    return noise / noise.square().mean((-2, -1), keepdim=True).sqrt().clamp_min(1e-6)


def _trace(rows: RandomRows, height: int, width: int) -> Tensor:
    """Frequency with which the chaos game visits each pixel, (B, H, W), between 0 and 1 on a logarithmic scale.

    Visits are counted as integers, whose sum does not depend on their order or the device.
    """
    turn, back = rows.uniform(_MAPS, high=2 * math.pi), rows.uniform(_MAPS, high=2 * math.pi)
    stretch = rows.uniform(_MAPS, 2, low=0.2, high=0.8)
    shift = rows.uniform(_MAPS, 2, low=-1, high=1)
    mirrored = rows.uniform(_MAPS) < 0.5
    count = rows.uniform(1, low=2, high=_MAPS + 1).floor().clamp(max=_MAPS)
    stretch = torch.stack([stretch[..., 0], torch.where(mirrored, -1.0, 1.0) * stretch[..., 1]], 2)
    matrices = _rotation(turn) @ (stretch[..., None] * _rotation(back))
    choice = (rows.uniform(_WALKERS, _STEPS) * count[:, :, None]).long().clamp(max=_MAPS - 1)
    batch = torch.arange(len(choice), device=choice.device)[:, None]
    # One row per coefficient, gathered by a single index_select: this takes most of the time.
    maps = torch.cat([matrices.flatten(2), shift], 2).flatten(0, 1).T.contiguous()
    x, y = torch.zeros(2, len(choice), _WALKERS, device=choice.device)
    visited = []
    for chosen in (choice + batch[..., None] * _MAPS).unbind(2):
        a, b, c, d, e, f = maps.index_select(1, chosen.flatten()).view(6, *x.shape)
        x, y = a * x + b * y + e, c * x + d * y + f
        visited.append(torch.stack([x, y], 2))
    path = torch.cat(visited[_SETTLE:], 1)
    low, high = path.amin(1, keepdim=True), path.amax(1, keepdim=True)
    path = (path - low) / (high - low).amax(2, keepdim=True).clamp_min(1e-6)
    path = path + (1 - (path.amax(1, keepdim=True))) / 2  # centred along its shorter side
    column = (path[..., 0] * width).long().clamp(0, width - 1)
    row = (path[..., 1] * height).long().clamp(0, height - 1)
    place = batch * height * width + row * width + column
    visits = torch.bincount(place.flatten(), minlength=len(choice) * height * width).float().view(-1, height, width)
    if min(height, width) >= _SMOOTH_FROM:
        # A few thousand points leave gaps where a fractal is thin.
        visits = functional.avg_pool2d(visits[:, None], 3, 1, 1)[:, 0]
    seen = torch.log1p(visits)
    return seen / seen.amax((1, 2), keepdim=True)


def _rotation(angle: Tensor) -> Tensor:
    """(..., 2, 2)."""
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
