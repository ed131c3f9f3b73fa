"""What the numerics are compared with: formulas as printed, at 60 digits."""

from __future__ import annotations

import pytest

__all__ = ["gaussian_delta"]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of a μ-GDP mechanism at `epsilon` (Balle and Wang 2018, Theorem 8)."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))
