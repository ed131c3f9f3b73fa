"""Sources of the randomness that privacy rests on, independent of every seed of the run.

`seed_everything`, a configuration file or a checkpoint must never make the noise reproducible: an adversary could
subtract it. `torch.Generator` is no alternative: on the CPU it keeps only 32 bits of its seed, which can be searched.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


class NoiseSource(ABC):
    """Uniform 64-bit words, and the distributions that the mechanisms draw from them.

    Attributes:
        secure: False if others can reproduce the noise, which voids a guarantee built on it.
    """

    secure: bool = False

    @abstractmethod
    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` independent, uniform 64-bit words, shape (count,)."""

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        """Standard normal draws by Box-Muller from 64-bit uniforms: float64, on the CPU.

        The tails end at 9.5 standard deviations, beyond which a standard normal has mass below 3e-21. Floating-point
        Gaussians are not hardened against attacks on their low bits (Mironov 2012).
        """
        total = int(np.prod(tuple(shape), dtype=np.int64))
        half = (total + 1) // 2
        uniform = (self.words(2 * half).astype(np.float64) + 0.5) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform[:half]))
        angle = 2.0 * np.pi * uniform[half:]
        draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:total]
        return torch.from_numpy(draws).reshape(tuple(shape))


class SystemNoise(NoiseSource):
    """Noise from the operating system's cryptographic generator, never seeded and never saved."""

    secure = True

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` words of `os.urandom`, shape (count,)."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class ReproducibleNoise(NoiseSource):
    """Noise that anyone with the seed can reproduce: for tests and debugging only. It **voids** the guarantee.

    Args:
        seed: Any integer from 0.
    """

    def __init__(self, *, seed: int) -> None:
        self._bits = np.random.Philox(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of a Philox stream, shape (count,)."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


_WORDS = 2**64


def uniform_integers(noise: NoiseSource, limits: torch.Tensor) -> torch.Tensor:
    """Integers in [0, limit), int64, one for each of int64 `limits` of any shape; exactly uniform by rejection.

    Raises:
        ValueError: A limit below 1.
    """
    if (limits < 1).any():
        raise ValueError(f"limits must be 1 or more, got {int(limits.min())}")
    flat = limits.detach().cpu().numpy().astype(np.uint64).reshape(-1)
    words = noise.words(flat.size).copy()
    # The last, incomplete multiple of the limit would make small values likelier. Its length is 2**64 % limit, which
    # equals (2**64 - limit) % limit.
    excess = (np.uint64(0) - flat) % flat
    while (bad := words > np.uint64(_WORDS - 1) - excess).any():
        words[bad] = noise.words(int(bad.sum()))
    return torch.from_numpy((words % flat).astype(np.int64)).reshape(limits.shape)


def bernoulli(noise: NoiseSource, probabilities: Sequence[int], index: torch.Tensor) -> torch.Tensor:
    """Events of probability `probabilities[i] / 2**64` for each entry i of int64 `index`: bool, of its shape.

    Integer thresholds, from 0 to 2**64 - 1, make the probabilities exact: no rounding of floating-point numbers can
    favour an outcome.
    """
    thresholds = np.array(probabilities, dtype=np.uint64)[index.detach().cpu().numpy()]
    words = noise.words(int(thresholds.size)).reshape(thresholds.shape)
    return torch.from_numpy(np.asarray(words < thresholds))


def laplace(noise: NoiseSource, shape: Sequence[int]) -> torch.Tensor:
    """Standard Laplace draws (density exp(-|x|)/2), float64 on the CPU, as the difference of two exponentials.

    The tails end at 45 scales, beyond which the distribution has mass below 3e-20. Floating-point Laplace noise is not
    hardened against attacks on its low bits (Mironov 2012); votes release only the class.
    """
    words = noise.words(2 * math.prod(shape)).reshape(2, *shape)
    first, second = -np.log((words.astype(np.float64) + 0.5) * 2.0**-64)
    return torch.from_numpy(first - second)
