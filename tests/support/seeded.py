"""Noise for tests that must not fail by chance, and what is tested of noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from privacy.mechanisms.base import ReproducibleNoise


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


class SharedRow(Seeded):
    """The mutant that gives every row of a batch the same noise."""

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        return super().gaussian(shape[-1:]).expand(tuple(shape))


def p_value(drawn: np.ndarray[Any, Any], scale: float) -> float:
    """How likely numbers are as normal ones of that scale: their sum of squares over its own is chi-square."""
    share = float(np.square(drawn / scale).sum())
    return float(2 * min(stats.chi2.cdf(share, drawn.size), stats.chi2.sf(share, drawn.size)))


def has_deviation(draws: torch.Tensor, deviation: float) -> bool:
    """Two-sided test of the deviation; mean zero is part of it. Wrong once in 10⁸ for the right one."""
    return p_value(draws.numpy(), deviation) > 1e-8


def correlated(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two parts of the noise tell something of each other."""
    found = float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])
    return abs(found) > 6.5 / math.sqrt(first.numel())
