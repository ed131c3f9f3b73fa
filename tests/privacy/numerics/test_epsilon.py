"""The exact Gaussian figure, against independent high-precision arithmetic."""

from __future__ import annotations

import math

from hypothesis import given, settings, strategies as st
from support.closed_forms import gaussian_delta

from privacy import gaussian_epsilon


@settings(max_examples=150, deadline=None)
@given(st.floats(-7, 4), st.floats(-15, -0.5) | st.floats(-300, -15))
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
