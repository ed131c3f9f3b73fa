"""Shaders: each image is a random function of its coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.priors.base import RandomRows, RowPrior
from lightning_modules.priors.colours import palette, palette_numbers, tone, tone_numbers

__all__ = ["ShaderPrior"]

_INPUTS = 4  # of a network: two coordinates, their length, their product
_KINDS = 4  # of activations
_WARPS = 3  # octaves that bend the coordinates
_TABLE = 64  # colours of a palette, between which is interpolated
_POINTS = {"cpu": 2**16}  # at once: what a processor's cache holds
_MANY_POINTS = 2**23


class ShaderPrior(RowPrior):
    """Small random networks of the coordinates, bent, folded and coloured at random.

    The public knowledge it encodes, and no more: images have edges, shading, textures that repeat, and things that are
    symmetric about a point, at several scales; their colours belong together. It knows no object.

    Networks of coordinates that make pictures are those of Stanley (2007), "Compositional pattern producing networks";
    short random programs of this kind as pre-training images: Baradad et al. (2022), "Procedural Image Programs for
    Representation Learning", whose programs people wrote. Here a program is drawn: its coordinates are turned, scaled,
    bent by sines of three octaves, at times taken as radius and angle or folded to tiles; a network of two layers,
    each unit a sine, a triangle wave, a soft step or a bump, with random connections, makes fields of them; fields are
    colours, or places on a palette, with soft steps and shading.

    Its defaults were chosen by looking, and by the slope of the spectra.

    Attributes:
        units: of each layer, a multiple of 4.
        depth: layers.
        frequency: least and largest of the first layer, in cycles per shorter side of the image.
        warp: largest shift that bends the coordinates, in half sides.
        polar: probability that coordinates are radius and angle.
        tiled: probability that coordinates are folded, so that the pattern repeats.
        edges: probability that a soft step of a field parts the image in two.
        supersampling: points along each side of a pixel, whose mean it is. Time grows with its square.
    """

    units = 8
    depth = 2
    frequency = (0.25, 6.0)
    warp = 0.5
    polar = tiled = 0.25
    edges = 0.6
    supersampling = 2

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        """See `RowPrior`."""
        channels = image_shape[0]
        fields = max(channels + 1, 3)
        coordinates = 4 + _WARPS * 6 + 1 + 4 + 3
        first = self.units * (2 * _INPUTS + 2) + 1 + fields * self.units
        layer = self.units * (2 * self.units + 1) + 2 + fields * self.units
        products = fields * self.units // 2
        colours = 1 + tone_numbers(channels) + 8 + palette_numbers(channels)
        return coordinates + first + (self.depth - 1) * layer + products + colours

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        """See `RowPrior`."""
        points = image_shape[1] * image_shape[2] * self.supersampling**2
        pieces = rows.split(max(1, _POINTS.get(rows.device.type, _MANY_POINTS) // points))
        return torch.cat([self._draw(piece, image_shape) for piece in pieces])

    def _draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        """One image for each row, (B, C, H, W) in [-1, 1]."""
        channels, height, width = image_shape
        tall, wide, side = (size * self.supersampling for size in (height, width, min(height, width)))
        y = (2 * torch.arange(tall, device=rows.device) + 1 - tall) / side
        x = (2 * torch.arange(wide, device=rows.device) + 1 - wide) / side
        grid = torch.stack([x.expand(tall, wide), y[:, None].expand(tall, wide)]).flatten(1)
        fields = self._fields(rows, self._coordinates(rows, grid), count=max(channels + 1, 3))
        plain = rows.uniform(1, 1) < 0.35
        toned = tone(rows, fields[:, : channels + 1].unflatten(2, (tall, wide))).flatten(2)
        painted = self._painted(rows, fields, channels)
        colours = torch.where(plain, toned, painted).unflatten(2, (tall, wide))
        image = functional.avg_pool2d(colours, self.supersampling)
        return 2 * image.clamp(0, 1) - 1

    def _coordinates(self, rows: RandomRows, grid: Tensor) -> Tensor:
        """Where in its own plane each point (2, N) of an image lies, (B, 2, N)."""
        turn = rows.uniform(1, high=2 * math.pi)
        zoom = 2 ** rows.uniform(1, low=-0.5, high=0.5)
        matrix = zoom[..., None] * torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 2).view(-1, 2, 2)
        point = matrix @ grid + rows.uniform(2, 1, low=-0.8, high=0.8)
        bends = self.warp * rows.uniform(1, 1) ** 2
        for octave in range(_WARPS):
            mixing, phase = 2.0**octave * rows.normal(2, 2), rows.uniform(2, 1, high=2 * math.pi)
            point = point + bends / 2**octave * torch.sin(torch.baddbmm(phase, mixing, point))
        polar, tiled, sectors, swirl = rows.uniform(4, 1, 1).unbind(1)
        # An angle is folded, so that a whole turn ends where it began whatever is computed from it.
        radius = point.square().sum(1, keepdim=True).sqrt()
        angle = torch.atan2(point[:, 1:], point[:, :1]) / (2 * math.pi)
        folded = _triangle((1 + 7 * sectors).floor() * angle + 2 * (swirl - 0.5) * radius)
        point = torch.where(polar < self.polar, torch.cat([2 * radius - 1, folded], 1), point)
        pitch = 2 ** rows.uniform(1, 1, low=-1, high=1.5)
        shift = rows.uniform(2, 1)
        return torch.where(tiled < self.tiled, _triangle(pitch / 2 * point + shift), point)

    def _fields(self, rows: RandomRows, point: Tensor, *, count: int) -> Tensor:
        """What an image's network makes of its points (B, 2, N), each of mean 0 and deviation 1: (B, count, N)."""
        units = self.units
        radius = point.square().sum(1, keepdim=True).sqrt()
        values = torch.cat([point, radius, point[:, :1] * point[:, 1:]], 1)
        # Cycles per half side. Fast units are quieter, for spectra that fall as a photograph's.
        low, high = (math.log2(cycles / 2) for cycles in self.frequency)
        frequency = 2 ** rows.uniform(units, 1, low=low, high=high)
        weights = frequency * rows.normal(units, _INPUTS) * (rows.uniform(units, _INPUTS) < 0.6)
        layer = _activated(torch.baddbmm(rows.uniform(units, 1, low=-0.5, high=0.5), weights, values))
        layer *= (2**low / frequency).sqrt()
        # How deep an image's program is: mostly one layer is heard.
        fields = rows.uniform(1, 1) ** 3 * rows.normal(count, units) @ layer
        for _ in range(self.depth - 1):
            gain = 2 ** rows.uniform(1, 1, low=-1.5, high=0.5)
            weights = gain * rows.normal(units, units) * (rows.uniform(units, units) < 0.5)
            layer = _activated(torch.baddbmm(rows.uniform(units, 1, low=-0.5, high=0.5), weights, layer))
            fields.baddbmm_(rows.uniform(1, 1) ** 3 * rows.normal(count, units), layer)
        products = layer[:, : units // 2] * layer[:, units // 2 :]
        fields.baddbmm_(rows.normal(count, units // 2), products)
        fields -= fields.mean(2, keepdim=True)
        fields /= fields.square().mean(2, keepdim=True).sqrt_().clamp_min_(1e-3)
        return fields

    def _painted(self, rows: RandomRows, fields: Tensor, channels: int) -> Tensor:
        """Colours of one palette along a field, with a step and shading by two others, (B, C, N)."""
        span, start, jump, level, sharp, parted, shade, bias = rows.uniform(8, 1).unbind(1)
        step = torch.tanh((4 + 28 * sharp) * (fields[:, 1] - 2 * (level - 0.5)))
        jump = torch.where(parted < self.edges, 0.1 + 0.3 * jump, 0.0)
        at = (start + (0.04 + 0.2 * span**2) * fields[:, 0] + jump * step) % 1
        shading = 1 + 0.6 * shade**2 * torch.tanh(fields[:, 2] + bias - 0.5)
        table = palette(rows, torch.linspace(0, 1, _TABLE + 1, device=at.device).expand(len(at), -1), channels=channels)
        place = at * _TABLE
        below = place.floor().clamp(max=_TABLE - 1)
        first = below.long()[:, None].expand(-1, channels, -1)
        table = table.mT
        colours = torch.lerp(table.gather(2, first), table.gather(2, first + 1), (place - below)[:, None])
        return colours * shading[:, None]


def _triangle(turns: Tensor) -> Tensor:
    """A wave of straight lines between -1 and 1, one for each whole number."""
    return (turns - turns.round()).abs_().mul_(4).sub_(1)


def _activated(values: Tensor) -> Tensor:
    """A quarter of the units (B, U, N) each: sines, triangle waves, soft steps, bumps. Takes the place of `values`."""
    sine, triangle, step, bump = values.chunk(_KINDS, 1)
    sine.mul_(2 * math.pi).sin_()
    triangle.copy_(_triangle(triangle))
    step.mul_(6).tanh_()
    bump.square_().mul_(-8).exp_().mul_(2).sub_(1)
    return values
