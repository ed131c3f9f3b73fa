"""The Renyi bound by itself, which every composition must stay below."""

from __future__ import annotations

from collections.abc import Mapping

from privacy import Release
from privacy.numerics.rdp import rdp_curve_epsilon

__all__ = ["rdp_compose"]


def rdp_compose(counts: Mapping[Release, int], delta: float) -> float:
    """ε at `delta` by the sum of the releases' curves alone, at its best order."""
    return rdp_curve_epsilon(lambda orders: sum(count * one.rdp(orders) for one, count in counts.items()), delta)
