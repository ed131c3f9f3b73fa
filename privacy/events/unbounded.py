"""The unbounded event: private data or a network used without noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import Release, checked_orders
from privacy.numerics import pld

__all__ = ["Unbounded"]


@dataclass(frozen=True)
class Unbounded(Release):
    """A release that nothing bounds; `reason` is printed wherever the resulting `inf` is shown."""

    kind: ClassVar[str] = "unbounded"
    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"reason must say in words why nothing bounds the release, got {self.reason!r}")

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        return np.full_like(checked_orders(orders), np.inf)

    @property
    def bounded(self) -> bool:
        return False

    @property
    def loss_std(self) -> float:
        return math.inf

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        loss = pld.LossDistribution(interval, 0, np.zeros(1), 1.0)
        return loss, loss
