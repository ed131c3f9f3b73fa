"""Noise for tests that must not fail by chance, and what is tested of noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy import stats

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


class SharedRow(Seeded):
    """The mutant that gives every row of a batch the same noise."""

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        return super().gaussian(shape[-1:]).expand(tuple(shape))


def has_deviation(draws: torch.Tensor, deviation: float) -> bool:
    """Two-sided chi-square test of the deviation; mean zero is part of it. Wrong once in 10⁸ for the right one."""
    statistic, count = float((draws / deviation).square().sum()), draws.numel()
    return bool(2 * min(stats.chi2.cdf(statistic, count), stats.chi2.sf(statistic, count)) > 1e-8)


def correlated(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two parts of the noise tell something of each other."""
    found = float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])
    return abs(found) > 6.5 / math.sqrt(first.numel())
