"""A network in operations that every runtime has: what is exported in place of one that is fast to train."""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from lightning_modules.networks.kernels import Kernels
from lightning_modules.networks.patches import Patches
from lightning_modules.networks.scattering import Scattering


def portable(network: nn.Module) -> nn.Module:
    """A copy for export, in eval mode on the CPU, that computes the same and takes any number of images.

    Scattering is computed without complex numbers, it and features of patches or kernels without pieces of a fixed
    size.
    """
    found = copy.deepcopy(network).cpu().eval().requires_grad_(False).to(memory_format=torch.contiguous_format)
    return _replaced(found)


def _replaced(module: nn.Module) -> nn.Module:
    if isinstance(module, Scattering):
        return PortableScattering(module).eval()
    if isinstance(module, Patches | Kernels):
        return InOnePiece(module).eval()
    for name, child in module.named_children():
        setattr(module, name, _replaced(child))
    return module


class InOnePiece(nn.Module):
    """Features of patches, or of a convolutional kernel network, of any number of images in one piece."""

    def __init__(self, features: Patches | Kernels) -> None:
        super().__init__()
        self.features = features
        self.output_shape = features.output_shape

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, F)."""
        return self.features.at_once(images)


class PortableScattering(nn.Module):
    """`Scattering` by matrix products only, in float64: Fourier transforms of such sizes are small matrices.

    ONNX runtimes differ in how they transform, by more than the features of a blank image allow: normalised by group,
    rounding errors of 1e-6 become logits that are off by 1e-3.
    """

    def __init__(self, scattering: Scattering) -> None:
        super().__init__()
        self.scales = scattering.scales
        self.margins = scattering.margins
        self.output_shape = scattering.output_shape
        self.norm = scattering.norm
        height, width = scattering._wavelets(0).shape[-2:]
        for scale in range(self.scales):
            # Sizes of the maps that are kept after a wavelet of this scale.
            for direction, sign in (("forward", -1), ("backward", 1)):
                for axis, side in (("rows", height >> scale), ("columns", width >> scale)):
                    for part, matrix in zip(("real", "imaginary"), _fourier(side, sign), strict=True):
                        self.register_buffer(f"{direction}_{axis}_{part}_{scale}", matrix)
            self.register_buffer(f"wavelets_{scale}", scattering._wavelets(scale).double())
            self.register_buffer(f"average_{scale}", scattering.get_buffer(f"average{scale}").double())

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, *output_shape)."""
        features: Tensor = self.norm(self.scattered(images))
        return features

    def scattered(self, images: Tensor) -> Tensor:
        """Features before normalisation, (N, C·paths, H/2**J, W/2**J), order by order."""
        (top, bottom), (left, right) = self.margins
        padded = nn.functional.pad(images, (left, right, top, bottom), mode="reflect").double()
        outputs = [self._average(padded.unsqueeze(2), 0)]
        spectrum = self._transform(padded, None, "forward", 0)
        deeper: list[Tensor] = []
        for scale in range(self.scales):
            first = self._filtered(spectrum, self._wavelets(scale), 0, scale)
            outputs.append(self._average(first, scale))
            if scale + 1 == self.scales:
                break
            spectra = self._transform(first, None, "forward", scale)
            for coarser in range(scale + 1, self.scales):
                bank = _folded(self._wavelets(coarser), 2**scale) * 4**scale
                second = self._filtered(spectra, bank, scale, coarser)
                deeper.append(self._average(second.flatten(2, 3), coarser))
        return torch.cat(outputs + deeper, dim=2).flatten(1, 2).to(images.dtype)

    def _filtered(self, spectra: tuple[Tensor, Tensor], bank: Tensor, before: int, scale: int) -> Tensor:
        """Moduli of maps filtered by a bank (J, H, W), of which every 2**(scale - before)-th sample is kept."""
        parts = [_folded(part.unsqueeze(-3) * bank, 2 ** (scale - before)) for part in spectra]
        real, imaginary = self._transform(parts[0], parts[1], "backward", scale)
        return (real.square() + imaginary.square()).sqrt()

    def _transform(self, real: Tensor, imaginary: Tensor | None, direction: str, scale: int) -> tuple[Tensor, Tensor]:
        """Fourier transform along both axes of maps (..., H, W), as real and imaginary part."""
        columns = [self.get_buffer(f"{direction}_columns_{part}_{scale}") for part in ("real", "imaginary")]
        rows = [self.get_buffer(f"{direction}_rows_{part}_{scale}") for part in ("real", "imaginary")]
        # The matrices are symmetric.
        first, second = real @ columns[0], real @ columns[1]
        if imaginary is not None:
            first, second = first - imaginary @ columns[1], second + imaginary @ columns[0]
        return rows[0] @ first - rows[1] @ second, rows[0] @ second + rows[1] @ first

    def _wavelets(self, scale: int) -> Tensor:
        return self.get_buffer(f"wavelets_{scale}")

    def _average(self, maps: Tensor, scale: int) -> Tensor:
        _, height, width = self.output_shape
        averaged = maps.flatten(-2) @ self.get_buffer(f"average_{scale}")
        return cast(Tensor, averaged.unflatten(-1, (height, width)))


def _fourier(side: int, sign: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the Fourier matrix, (side, side); inverse for sign 1."""
    steps = torch.arange(side)
    angles = 2 * math.pi / side * ((steps[:, None] * steps) % side).double()
    scale = 1 / side if sign > 0 else 1.0
    return angles.cos() * scale, sign * angles.sin() * scale


def _folded(spectra: Tensor, factor: int) -> Tensor:
    """Spectrum of the map of which every `factor`-th sample is kept, (..., H, W) → (..., H/factor, W/factor)."""
    if factor == 1:
        return spectra
    height, width = spectra.shape[-2] // factor, spectra.shape[-1] // factor
    return cast(Tensor, spectra.unflatten(-1, (factor, width)).unflatten(-3, (factor, height)).mean(dim=(-4, -2)))
