"""Scattering features (Bruna and Mallat 2013): fixed wavelets, which cost no privacy.

Tramèr and Boneh (*Differentially Private Learning Needs Better Features*, 2021) showed that a small model on them
beats deeper ones trained on pixels by DP-SGD. The filters are built here because Kymatio does not import with current
SciPy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_modules.networks.classifiers import checked_shape
from lightning_modules.priors import ImagePrior

_PIECE = 32
_ANGLES, _GROUPS, _STEP = 8, 27, 4


class Scattering(nn.Module):
    """Scattering features of orders 0 to 2 from Morlet wavelets of 2 scales and 8 angles, averaged and subsampled by 4.

    They have no parameters, and are normalised over 27 groups of channels within each image. This is Tramèr and Boneh's
    option that spends no privacy; statistics of the data would have to be released.

    Args:
        image_shape: channels, height, width.
        prior: not used, since the wavelets are fixed.

    Raises:
        ValueError: a side of the image is below 4 pixels.
    """

    def __init__(self, image_shape: tuple[int, int, int], prior: ImagePrior | None = None) -> None:
        super().__init__()
        channels, height, width = checked_shape("Scattering", image_shape, least=_STEP)
        self.margins = _margin(height), _margin(width)
        size = (height + sum(self.margins[0]), width + sum(self.margins[1]))
        paths = 1 + 2 * _ANGLES + _ANGLES**2
        self.output_shape = (channels * paths, -(-height // _STEP), -(-width // _STEP))
        self.norm = nn.GroupNorm(_GROUPS, channels * paths, affine=False)
        for scale in range(2):
            bank = [_morlet(size, scale, math.pi * angle / _ANGLES, slant=4 / _ANGLES) for angle in range(_ANGLES)]
            self.register_buffer(f"wavelets{scale}", torch.stack(bank), persistent=False)
        for scale in range(2):
            self.register_buffer(f"average{scale}", self._averaging(size, 2**scale), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to features (N, *output_shape)."""
        features: Tensor = self.norm(self.scattered(images))
        return features

    @torch.no_grad()
    def scattered(self, images: Tensor) -> Tensor:
        """Features before normalisation, (N, C·81, ⌈H/4⌉, ⌈W/4⌉), order by order."""
        # Small pieces stay in the processor's cache.
        kind = torch.promote_types(torch.float32, self.get_buffer("average0").dtype)
        pieces = [self._transform(piece) for piece in images.to(kind).split(_PIECE)]
        return torch.cat(pieces) if pieces and len(images) else images.new_zeros(0, *self.output_shape)

    def _transform(self, images: Tensor) -> Tensor:
        (top, bottom), (left, right) = self.margins
        padded = nn.functional.pad(images, (left, right, top, bottom), mode="reflect")
        spectrum = torch.fft.fft2(padded)
        # A wavelet's band is narrow enough to keep only every 2**scale-th sample.
        fine, coarse = (self._filtered(spectrum, scale) for scale in range(2))
        second = self._filtered(torch.fft.fft2(fine), 1)
        maps = ((padded[:, :, None], 0), (fine, 0), (coarse, 1), (second.flatten(2, 3), 1))
        averaged = [some.flatten(-2) @ self.get_buffer(f"average{scale}") for some, scale in maps]
        features: Tensor = torch.cat(averaged, dim=2).flatten(1, 2).unflatten(-1, self.output_shape[1:])
        return features

    def _filtered(self, spectra: Tensor, scale: int) -> Tensor:
        """Moduli of maps filtered by the wavelets of a scale and subsampled by 2**`scale`."""
        maps = torch.fft.ifft2(_filtered(spectra, self.get_buffer(f"wavelets{scale}"), 2**scale))
        # `abs` guards against overflow, which images cannot cause, and takes twice as long.
        real, imaginary = torch.view_as_real(maps).unbind(dim=-1)
        return (real.square() + imaginary.square()).sqrt_()

    def _averaging(self, size: tuple[int, int], kept: int) -> Tensor:
        """Matrix that averages by a Gaussian and subsamples maps that were subsampled by `kept` before."""
        sides = []
        for length, (before, _), count in zip(size, self.margins, self.output_shape[1:], strict=True):
            source = torch.arange(0, length, kept, dtype=torch.float64)
            target = before + _STEP * torch.arange(count, dtype=torch.float64)
            distance = torch.remainder(source[:, None] - target + length / 2, length) - length / 2
            weights = torch.exp(-(distance**2) / (2 * (0.8 * _STEP) ** 2))
            sides.append(weights / weights.sum(dim=0))
        return torch.kron(sides[0], sides[1]).float()


def _filtered(spectra: Tensor, bank: Tensor, factor: int) -> Tensor:
    """Filter spectra by each wavelet and subsample the maps by `factor`.

    The products' spectra are folded without holding all of them: torch is slow at summing complex numbers over strided
    axes, which took 70 % of a transform. Spectra are (..., H, W), complex, and the bank is (J, H, W), real;
    `factor` divides H and W. The result is (..., J, H/factor, W/factor), complex.
    """
    height, width = spectra.shape[-2] // factor, spectra.shape[-1] // factor
    pairs = torch.view_as_real(spectra)
    gains = (bank / factor**2).unsqueeze(-1).expand(*bank.shape, 2)  # for real and imaginary parts
    total: Tensor | None = None
    for row in range(factor):
        for column in range(factor):
            rows, columns = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
            part = pairs[..., rows, columns, :].flatten(-3).unsqueeze(-2)
            gain = gains[:, rows, columns].flatten(-3)
            total = part * gain if total is None else total.addcmul_(part, gain)
    assert total is not None
    return torch.view_as_complex(total.unflatten(-1, (height, width, 2)))


def _margin(side: int) -> tuple[int, int]:
    """Reflection padding before and after, at most side - 1 each, that makes the total a multiple of 4."""
    before = min(_STEP, side - 1)
    for after in range(before, side):
        if (side + before + after) % _STEP == 0:
            return before, after
    return 0, -side % _STEP


def _morlet(size: tuple[int, int], scale: int, angle: float, *, slant: float) -> Tensor:
    """Spectrum of a Morlet wavelet of mean 0: width 0.8·2**scale, frequency 3π/4/2**scale along `angle`."""
    sigma, frequency = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale
    rows, columns = _periods(size)
    along = columns * math.cos(angle) + rows * math.sin(angle)
    across = -columns * math.sin(angle) + rows * math.cos(angle)
    envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    wave = (envelope * torch.exp(1j * frequency * along)).sum(dim=0)
    base = envelope.sum(dim=0)
    kernel = (wave - base * (wave.sum() / base.sum())) / (2 * math.pi * sigma**2 / slant)
    spectrum: Tensor = torch.fft.fft2(kernel).real.float()
    return spectrum


def _periods(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Coordinates in the nine neighbouring periods, each (9, H, W): kernels wrap around instead of being cut."""
    # The origin comes first, as in a Fourier transform.
    sides = (torch.fft.fftfreq(length, d=1 / length, dtype=torch.float64) for length in size)
    rows, columns = torch.meshgrid(*sides, indexing="ij")
    shifts = [(a * size[0], b * size[1]) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    return torch.stack([rows + a for a, _ in shifts]), torch.stack([columns + b for _, b in shifts])
