"""Rewrites networks for export, using only operations that every runtime has."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from lightning_modules.networks.kernels import Kernels
from lightning_modules.networks.patches import Patches
from lightning_modules.networks.scattering import Scattering, folded


def portable(network: nn.Module) -> nn.Module:
    """Copy a network for export: in eval mode on the CPU, with the same outputs, for any number of images.

    Scattering is computed without complex numbers; scattering, patches and kernels process a batch in one piece.
    """
    copied = copy.deepcopy(network).cpu().eval().requires_grad_(False).to(memory_format=torch.contiguous_format)
    return _replaced(copied)


def _replaced(module: nn.Module) -> nn.Module:
    if isinstance(module, Scattering):
        return PortableScattering(module).eval()
    if isinstance(module, Patches | Kernels):
        return InOnePiece(module).eval()
    for name, child in module.named_children():
        setattr(module, name, _replaced(child))
    return module


class InOnePiece(nn.Module):
    """Patch features, or a convolutional kernel network, computed for any number of images in one piece."""

    def __init__(self, features: Patches | Kernels) -> None:
        super().__init__()
        self.features = features
        self.output_shape = features.output_shape

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, F)."""
        return self.features.at_once(images)


class PortableScattering(Scattering):
    """`Scattering` with Fourier transforms as matrix products in float64: at these sizes the matrices are small.

    Fourier transforms of ONNX runtimes differ by too much for blank images: group normalisation amplifies rounding
    errors of 1e-6 to differences of 1e-3 in logits.
    """

    def __init__(self, scattering: Scattering) -> None:
        nn.Module.__init__(self)
        self.scales, self.angles = scattering.scales, scattering.angles
        self.margins, self.output_shape, self.norm = scattering.margins, scattering.output_shape, scattering.norm
        height, width = scattering._wavelets(0).shape[-2:]
        for scale in range(self.scales):
            # Sizes of the maps after subsampling at this scale.
            for direction, sign in (("forward", -1), ("backward", 1)):
                for axis, side in (("rows", height >> scale), ("columns", width >> scale)):
                    for part, matrix in zip(("real", "imaginary"), _fourier(side, sign), strict=True):
                        self.register_buffer(f"{direction}_{axis}_{part}_{scale}", matrix)
            for name in (f"wavelets{scale}", f"average{scale}"):
                self.register_buffer(name, scattering.get_buffer(name).double())

    def scattered(self, images: Tensor) -> Tensor:
        """See `Scattering.scattered`; all images at once."""
        return self._transform(images.double()).to(images.dtype)

    def _spectrum(self, maps: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        return self._transformed(maps, None, "forward", scale)

    def _filtered(self, spectra: tuple[Tensor, Tensor], bank: Tensor, before: int, scale: int) -> Tensor:
        parts = [folded(part.unsqueeze(-3) * bank, 2 ** (scale - before)) for part in spectra]
        real, imaginary = self._transformed(parts[0], parts[1], "backward", scale)
        return (real.square() + imaginary.square()).sqrt()

    def _transformed(self, real: Tensor, imaginary: Tensor | None, direction: str, scale: int) -> tuple[Tensor, Tensor]:
        """Fourier transform of maps (..., H, W) along both axes, as real and imaginary parts."""
        columns = [self.get_buffer(f"{direction}_columns_{part}_{scale}") for part in ("real", "imaginary")]
        rows = [self.get_buffer(f"{direction}_rows_{part}_{scale}") for part in ("real", "imaginary")]
        # The matrices are symmetric.
        first, second = real @ columns[0], real @ columns[1]
        if imaginary is not None:
            first, second = first - imaginary @ columns[1], second + imaginary @ columns[0]
        return rows[0] @ first - rows[1] @ second, rows[0] @ second + rows[1] @ first


def _fourier(side: int, sign: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of the Fourier matrix, (side, side); sign 1 gives its inverse."""
    steps = torch.arange(side)
    angles = 2 * math.pi / side * ((steps[:, None] * steps) % side).double()
    scale = 1 / side if sign > 0 else 1.0
    return angles.cos() * scale, sign * angles.sin() * scale
