"""Images of generators that were never trained: random weights, oriented filters, noise at every scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.priors.base import RandomRows, RowPrior
from lightning_modules.priors.colours import tone, tone_numbers

__all__ = ["RandomGeneratorPrior"]

_KERNEL = 5  # pixels a side of a filter
_START = 4  # pixels of the shorter side of the first, coarsest maps
_SLOPE = 0.2  # of the leaky rectifier below 0


class RandomGeneratorPrior(RowPrior):
    """Generators as StyleGAN's with random weights, whose filters are oriented wavelets.

    The public knowledge it encodes, and no more: images are made of oriented edges and lines at every scale, coarse
    structure bears fine structure, amplitudes fall with the frequency, colour channels go together. It knows no object.

    After the *StyleGAN oriented* model of Baradad et al. (2021), "Learning to See by Looking at Noise": maps of 4
    pixels are upsampled step by step, given noise whose strength falls as 1/f, modulated by the image's own random
    style, filtered by Gabor wavelets, normalised and rectified. Nothing is trained. Weights are drawn anew for every
    16 images. The last maps are mixed to fields, which are decorrelated in each image and coloured
    by `tone`.

    Its defaults were chosen by looking, and by the slope of the spectra. The random numbers of one image, its style
    and noise, are one row of one draw from `generator`; the weights come from a separate generator, seeded by an
    earlier draw.

    Attributes:
        images_per_generator: consecutive images of one draw that have the same weights.
        channels: maps of each scale but the finest, which has half as many.
        style: standard deviation of the logarithm of the factor by which a style modulates a map.
        noise: standard deviation of the coarsest noise beside a map's of 1; 0 leaves only the first maps random.
    """

    images_per_generator = 16
    channels = 24
    style = 1.0
    noise = 1.5

    seeds = 1

    def numbers(self, image_shape: tuple[int, int, int]) -> int:
        """See `RowPrior`."""
        sizes = _sizes(*image_shape[1:])
        return self._noise_numbers(sizes) + 2 * self.channels * len(sizes) + tone_numbers(image_shape[0])

    def _noise_numbers(self, sizes: list[torch.Size]) -> int:
        return self.channels * sizes[0].numel() + sum(size.numel() for size in sizes)

    def draw(self, rows: RandomRows, image_shape: tuple[int, int, int]) -> Tensor:
        """See `RowPrior`."""
        sizes = _sizes(*image_shape[1:])
        inputs = zip(
            rows.normal(self._noise_numbers(sizes)).split(self.images_per_generator),
            rows.normal(len(sizes), 2, self.channels, 1, 1).split(self.images_per_generator),
            strict=True,
        )
        fields = [
            self._fields(_weights(self.channels, len(sizes), image_shape[0] + 1, rows.own[0], rows.device), *one, sizes)
            for one in inputs
        ]
        return 2 * tone(rows, _decorrelated(torch.cat(fields))) - 1

    def _fields(self, weights: list[list[Tensor]], noise: Tensor, style: Tensor, sizes: list[torch.Size]) -> Tensor:
        """Output of one generator for noise (B, N) and styles (B, L, 2, K, 1, 1): its fields (B, F, H, W)."""
        every_filters, every_heard, [head] = weights
        maps, *fine = noise.split([self.channels * sizes[0].numel(), *(size.numel() for size in sizes)], 1)
        maps = maps.unflatten(1, (self.channels, *sizes[0]))
        for level, (size, filters, heard) in enumerate(zip(sizes, every_filters, every_heard, strict=True)):
            factor, shift = style[:, level].unbind(1)
            if level:
                maps = functional.interpolate(maps, size=size, mode="bilinear")
            # Noise before the filters, which give it their directions: added after them, it would be grain.
            maps = maps + self.noise / 2**level * heard * fine[level].unflatten(1, (1, *size))
            maps = maps * torch.exp(self.style * factor)
            maps = functional.conv2d(functional.pad(maps, [_KERNEL // 2] * 4, mode="replicate"), filters)
            maps = functional.leaky_relu(_normalised(maps) + self.style * shift[:, : maps.shape[1]], _SLOPE)
        return torch.einsum("fk,bkhw->bfhw", head, maps)


def _weights(
    channels: int, levels: int, fields: int, generator: torch.Generator, device: torch.device | str
) -> list[list[Tensor]]:
    """One generator's, on `device`.

    Filters of each level (K, K', 5, 5), loudness of noise in each map of each level (K, 1, 1), and the one matrix
    (F, K) from the last maps to fields.
    """
    widths = [channels] * levels + [channels // 2 if levels > 1 else channels]
    where = generator.device
    filters = [_wavelets(widths[n + 1], widths[n], generator) for n in range(levels)]
    heard = [torch.randn(width, 1, 1, generator=generator, device=where) for width in widths[:-1]]
    head = torch.randn(fields, widths[-1], generator=generator, device=where)
    return [[values.to(device) for values in kind] for kind in (filters, heard, [head])]


def _wavelets(outputs: int, inputs: int, generator: torch.Generator) -> Tensor:
    """Gabor filters (outputs, inputs, 5, 5): those of one output share direction and frequency, not their phase.

    Few inputs are loud: their weights have a Laplacian distribution.
    """
    where = generator.device
    turn, frequency, long = torch.rand(3, outputs, 1, 1, 1, generator=generator, device=where).unbind(0)
    phase, rank = torch.rand(2, outputs, inputs, 1, 1, generator=generator, device=where).unbind(0)
    at = torch.arange(_KERNEL, device=where) - _KERNEL // 2
    cosine, sine = torch.cos(math.pi * turn), torch.sin(math.pi * turn)
    across, along = cosine * at + sine * at[:, None], cosine * at[:, None] - sine * at
    envelope = torch.exp(-across.square() / 2 - along.square() / 2 / (1 + long) ** 2)
    wave = torch.cos(2 * math.pi * (0.4 * frequency * across + phase))
    signed = 2 * rank - 1
    strength = -signed.sign() * torch.log1p(-signed.abs().clamp(max=1 - 1e-6))
    return strength * envelope * wave


def _sizes(height: int, width: int) -> list[torch.Size]:
    """Height and width of the maps from the coarsest to the image's, each half of the next, rounded up."""
    sizes = [torch.Size([height, width])]
    while min(sizes[0]) > _START:
        sizes.insert(0, torch.Size([-(-side // 2) for side in sizes[0]]))
    return sizes


def _normalised(maps: Tensor) -> Tensor:
    """Each map of each image to mean 0 and standard deviation 1."""
    centred = maps - maps.mean((2, 3), keepdim=True)
    return centred / centred.square().mean((2, 3), keepdim=True).sqrt().clamp_min(1e-3)


def _decorrelated(fields: Tensor) -> Tensor:
    """Fields (B, F, H, W) of mean 0 and deviation 1, each uncorrelated with those before it in the same image."""
    flat = _normalised(fields).flatten(2)
    covariance = flat @ flat.mT / flat.shape[2]
    # The small ridge bounds how much a field that is nearly a mixture of others is magnified.
    ridge = 0.01 * torch.eye(fields.shape[1], device=fields.device)
    lower, _ = torch.linalg.cholesky_ex(covariance + ridge)
    decorrelated: Tensor = torch.linalg.solve_triangular(lower, flat, upper=False).view_as(fields)
    return decorrelated
