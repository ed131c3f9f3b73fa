"""The exact Gaussian figure, against independent high-precision arithmetic and the design's reference values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy import gaussian_delta, gaussian_epsilon

mpmath = pytest.importorskip("mpmath")


def reference_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang's formula as printed, at 60 digits."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.0999, 0.1001, 0.7, 3.0, 78.2, 1000.0])
@pytest.mark.parametrize("z", [-8.0, -1.0, 0.0, 1.0, 4.0, 8.0, 30.0])
def test_delta_matches_high_precision(mu: float, z: float) -> None:
    epsilon = max(0.0, 0.5 * mu * mu + z * mu)
    assert gaussian_delta(mu, epsilon) == pytest.approx(reference_delta(mu, epsilon), rel=1e-8, abs=1e-290)


def test_where_the_naive_form_overflows() -> None:
    assert gaussian_delta(78.2, 3388.1) == pytest.approx(1.12489e-5, rel=1e-5)
    with pytest.raises(OverflowError):
        math.exp(3388.1)


@settings(max_examples=150, deadline=None)
@given(st.floats(-7, 4), st.floats(-15, -0.5))
def test_epsilon_inverts_delta_and_stays_on_the_safe_side(log_mu: float, log_delta: float) -> None:
    mu, delta = 10.0**log_mu, 10.0**log_delta
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    if epsilon > 0.0:
        assert gaussian_delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 1e-12)


def test_ends() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_epsilon(1e-300, 1e-5) == 0.0
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_delta(math.inf, 1e9) == 1.0
    assert gaussian_delta(1.0, math.inf) == 0.0
    assert gaussian_delta(1e-300, 1.0) == 0.0
    assert gaussian_delta(1e300, 1.0) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian_epsilon(-1.0, 1e-5),
        lambda: gaussian_epsilon(math.nan, 1e-5),
        lambda: gaussian_epsilon(1.0, 0.0),
        lambda: gaussian_epsilon(1.0, 1.0),
        lambda: gaussian_epsilon(1.0, math.nan),
        lambda: gaussian_delta(1.0, -0.1),
    ],
)
def test_meaningless_arguments_raise(call: object) -> None:
    with pytest.raises(ValueError, match=r"must be .*got"):
        call()  # type: ignore[operator]
