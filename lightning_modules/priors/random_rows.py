"""The random numbers of a batch of images: one row of one draw for each, taken column by column."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["RandomRows"]


class RandomRows:
    """Takes numbers from uniform rows (B, N), the next columns each time.

    A row belongs to one image, so that the first images of a draw do not depend on how many are drawn.

    Args:
        uniform: (B, N), values in [0, 1).
    """

    def __init__(self, uniform: Tensor) -> None:
        self._numbers = uniform
        self._next = 0

    @classmethod
    def draw(cls, rows: int, columns: int, *, generator: torch.Generator, device: torch.device | str) -> RandomRows:
        """One draw of (rows, columns) from `generator`, on whatever device that lives, moved to `device`."""
        return cls(torch.rand(rows, columns, generator=generator, device=generator.device).to(device))

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self._numbers.device

    def split(self, size: int) -> list[RandomRows]:
        """The same rows, at most `size` at once; none of their numbers may have been taken."""
        return [RandomRows(piece) for piece in self._numbers.split(size)]

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(B, *shape), uniform between two values.

        Raises:
            ValueError: if fewer numbers are left than asked for: an image would else repeat its own.
        """
        count = 1
        for size in shape:
            count *= size
        if self._next + count > self._numbers.shape[1]:
            raise ValueError(f"{count} random numbers asked for, {self._numbers.shape[1] - self._next} are left")
        taken = self._numbers[:, self._next : self._next + count]
        self._next += count
        return low + (high - low) * taken.reshape(len(taken), *shape)

    def normal(self, *shape: int) -> Tensor:
        """(B, *shape), standard normal, by the inverse of its distribution function: one uniform number each."""
        quantiles: Tensor = torch.special.ndtri(self.uniform(*shape).clamp(1e-6, 1 - 1e-6))
        return quantiles
