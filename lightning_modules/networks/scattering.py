"""Scattering features (Bruna and Mallat 2013): fixed wavelets, which cost no privacy.

Tramèr and Boneh (*Differentially Private Learning Needs Better Features*, 2021) showed that a small model on them
beats deeper ones trained on pixels by DP-SGD. The filters are built here because Kymatio does not import with current
SciPy.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.networks.classifiers import checked_shape
from lightning_modules.priors import ImagePrior
from lightning_modules.setting_checks import check_whole_number

_PIECE = 32


class Scattering(nn.Module):
    """Scattering features of orders 0 to 2 from Morlet wavelets, averaged and subsampled by 2**scales. No parameters.

    They are normalised over groups of channels within each image. This is Tramèr and Boneh's option that spends no
    privacy; statistics of the data would have to be released.

    Args:
        image_shape: channels, height, width.
        prior: not used, since the wavelets are fixed.
        scales: J.
        angles: L.
        groups: groups of the normalisation, a divisor of the number of feature channels. 81 channels (J=2, L=8, gray)
            allow 1, 3, 9, 27 and 81.

    Raises:
        ValueError: a setting does not fit, or a side of the image is below 2**scales pixels.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        prior: ImagePrior | None = None,
        *,
        scales: int = 2,
        angles: int = 8,
        groups: int = 27,
    ) -> None:
        super().__init__()
        for name, value in (("scales", scales), ("angles", angles)):
            check_whole_number(f"Scattering.{name}", value, least=1)
        channels, height, width = checked_shape(
            f"Scattering of {scales} scales", image_shape=image_shape, least=2**scales
        )
        self.scales, self.angles = scales, angles
        step = 2**scales
        margins = _margin(height, step), _margin(width, step)
        size = (height + sum(margins[0]), width + sum(margins[1]))
        self.margins = margins
        paths = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2
        self.output_shape = (channels * paths, -(-height // step), -(-width // step))
        if groups < 1 or channels * paths % groups:
            raise ValueError(f"Scattering.groups must divide the {channels * paths} scattering channels, got {groups}")
        self.norm = nn.GroupNorm(groups, channels * paths, affine=False)
        for scale in range(scales):
            bank = [_morlet(size, scale, math.pi * angle / angles, slant=4 / angles) for angle in range(angles)]
            self.register_buffer(f"wavelets{scale}", torch.stack(bank), persistent=False)
        for scale in range(scales):
            self.register_buffer(f"average{scale}", self._averaging(size, 2**scale), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, *output_shape)."""
        features: Tensor = self.norm(self.scattered(images))
        return features

    @torch.no_grad()
    def scattered(self, images: Tensor) -> Tensor:
        """Features before normalisation, (N, C·paths, ⌈H/2**J⌉, ⌈W/2**J⌉), order by order."""
        # Small pieces stay in the processor's cache.
        kind = torch.promote_types(torch.float32, self.get_buffer("average0").dtype)
        pieces = [self._transform(piece) for piece in images.to(kind).split(_PIECE)]
        return torch.cat(pieces) if pieces and len(images) else images.new_zeros(0, *self.output_shape)

    def _transform(self, images: Tensor) -> Tensor:
        (top, bottom), (left, right) = self.margins
        padded = nn.functional.pad(images, (left, right, top, bottom), mode="reflect")
        outputs = [self._average(padded[:, :, None], 0)]
        spectrum = self._spectrum(padded, 0)
        deeper: list[Tensor] = []
        for scale in range(self.scales):
            # A wavelet's band is narrow enough to keep only every 2**scale-th sample.
            first = self._filtered(spectrum, self._wavelets(scale), 0, scale)
            outputs.append(self._average(first, scale))
            if scale + 1 == self.scales:
                break
            spectra = self._spectrum(first, scale)
            for coarser in range(scale + 1, self.scales):
                # The wavelet's spectrum on the grid of `first`.
                bank = folded(self._wavelets(coarser), 2**scale) * 4**scale
                second = self._filtered(spectra, bank, scale, coarser)
                deeper.append(self._average(second.flatten(2, 3), coarser))
        return torch.cat(outputs + deeper, dim=2).flatten(1, 2)

    def _spectrum(self, maps: Tensor, scale: int) -> Any:
        """Fourier transform of maps (..., H, W) subsampled by 2**`scale`."""
        return torch.fft.fft2(maps)

    def _filtered(self, spectra: Any, bank: Tensor, before: int, scale: int) -> Tensor:
        """Moduli of maps filtered by a bank (J, H, W) and subsampled by 2**(scale - before)."""
        maps = torch.fft.ifft2(_filtered(spectra, bank, 2 ** (scale - before)))
        # `abs` guards against overflow, which images cannot cause, and takes twice as long.
        real, imaginary = torch.view_as_real(maps).unbind(dim=-1)
        return (real.square() + imaginary.square()).sqrt_()

    def _wavelets(self, scale: int) -> Tensor:
        return self.get_buffer(f"wavelets{scale}")

    def _average(self, maps: Tensor, scale: int) -> Tensor:
        _, height, width = self.output_shape
        averaged: Tensor = (maps.flatten(-2) @ self.get_buffer(f"average{scale}")).unflatten(-1, (height, width))
        return averaged

    def _averaging(self, size: tuple[int, int], kept: int) -> Tensor:
        """Matrix that averages by a Gaussian and subsamples maps that were subsampled by `kept` before."""
        step = 2**self.scales
        _, height, width = self.output_shape
        sides = []
        for length, (before, _), count in zip(size, self.margins, (height, width), strict=True):
            source = torch.arange(0, length, kept, dtype=torch.float64)
            target = before + step * torch.arange(count, dtype=torch.float64)
            distance = torch.remainder(source[:, None] - target + length / 2, length) - length / 2
            weights = torch.exp(-(distance**2) / (2 * (0.8 * step) ** 2))
            sides.append(weights / weights.sum(dim=0))
        return torch.kron(sides[0], sides[1]).float()


def _filtered(spectra: Tensor, bank: Tensor, factor: int) -> Tensor:
    """Filter spectra by each wavelet and subsample the maps by `factor`.

    The result is `folded` of the products, without holding all of them: torch is slow at summing complex numbers over
    strided axes, which took 70 % of a transform. Spectra are (..., H, W), complex, and the bank is (J, H, W), real;
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


def folded(spectra: Tensor, factor: int) -> Tensor:
    """Spectrum of the map subsampled by `factor`, (..., H, W) → (..., H/factor, W/factor)."""
    if factor == 1:
        return spectra
    height, width = spectra.shape[-2] // factor, spectra.shape[-1] // factor
    folded: Tensor = spectra.unflatten(-1, (factor, width)).unflatten(-3, (factor, height)).mean(dim=(-4, -2))
    return folded


def _margin(side: int, step: int) -> tuple[int, int]:
    """Reflection padding before and after, at most side - 1 each, that makes the total a multiple of `step`."""
    before = min(step, side - 1)
    for after in range(before, side):
        if (side + before + after) % step == 0:
            return before, after
    return 0, -side % step


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
