"""Random colours like those of photographs: correlated channels and smooth palettes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.priors.base import RandomRows

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


def tone_numbers(channels: int) -> int:
    """Number of random numbers per image in `tone`."""
    return channels * channels + channels + 3


def tone(rows: RandomRows, fields: Tensor) -> Tensor:
    """Turn fields into images (B, C, H, W) in [0, 1] with random tints, mean and contrast and correlated channels.

    Args:
        rows: random numbers of each image, see `tone_numbers`.
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
