"""Noise for tests that must not fail by chance."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from privacy import ReproducibleNoise


class Seeded(ReproducibleNoise):
    """Noise that can be drawn again but is charged as if it could not.

    Args:
        seed: Of the stream.
        factor: What Gaussian draws are multiplied by: 1 for a working source.
    """

    secure = True

    def __init__(self, *, seed: int = 0, factor: float = 1.0) -> None:
        super().__init__(seed=seed)
        self.factor = factor

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        return super().gaussian(shape) * self.factor
