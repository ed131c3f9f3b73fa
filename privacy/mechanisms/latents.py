"""Laplace noise on a VAE's latent codes (DGD Sec. III-E), where the ε₁ of DGD's theorem comes from."""

from __future__ import annotations

import math

import torch

from privacy.mechanisms.draws import laplace
from privacy.mechanisms.noise import NoiseSource

__all__ = ["laplace_latents"]


def laplace_latents(codes: torch.Tensor, *, epsilon: float, noise: NoiseSource) -> torch.Tensor:
    """Codes scaled into [-1, 1] per coordinate, plus Laplace noise of scale 2c/ε₁.

    Two codes differ by at most 2 in each of c coordinates, so one sample costs `LaplaceVector(2c, 2c/ε₁)`: ε₁ per
    sample. B counts it once for the whole set, which holds only if a private record touches one sample; in DGD the
    samples are synthetic and depend on the private baseline all together.

    Args:
        codes: Shape (N, c), c the width of the code. Samples beyond [-1, 1] are scaled back by their largest entry;
            samples that are not finite become zeros.
        epsilon: ε₁.
        noise: Where randomness comes from.

    Returns:
        Shape (N, c), dtype and device of `codes`, detached.

    Raises:
        ValueError: Not (N, c), or an ε₁ that is not positive and finite.
    """
    if codes.ndim != 2 or codes.shape[1] < 1:
        raise ValueError(f"codes must have the shape (N, c) with c of 1 or more, got {tuple(codes.shape)}")
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    rows = codes.detach().cpu().double()
    rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, torch.zeros_like(rows))
    rows = (rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(1.0)).clamp(-1.0, 1.0)
    noisy = rows + laplace(noise, tuple(rows.shape)) * (2 * codes.shape[1] / epsilon)
    return noisy.to(dtype=codes.dtype, device=codes.device)
