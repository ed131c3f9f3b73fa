"""What the numerics are compared with: formulas as printed, at 60 digits, and the Renyi bound by itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from privacy import Release
from privacy.numerics.epsilon import rdp_curve_epsilon


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of a μ-GDP mechanism at `epsilon` (Balle and Wang 2018, Theorem 8)."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


def rdp_compose(counts: Mapping[Release, int], delta: float) -> float:
    """ε at `delta` by the sum of the releases' curves alone, at its best order."""
    return rdp_curve_epsilon(lambda orders: sum(count * one.rdp(orders) for one, count in counts.items()), delta)
