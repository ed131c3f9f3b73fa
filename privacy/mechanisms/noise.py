"""Sources of the randomness that privacy rests on, independent of every seed of the run.

`seed_everything`, a configuration file or a checkpoint must never make the noise reproducible: an adversary could
subtract it. `torch.Generator` is no alternative: on the CPU it keeps only 32 bits of its seed, which can be searched.
"""

from __future__ import annotations

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
