"""Loss distributions: bounds from above on every grid, also where masses are rounded, truncated or tiny."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.closed_forms import gaussian_delta

from privacy import gaussian_epsilon
from privacy.numerics import pld


def hockey_stick(loss: pld.LossDistribution, epsilon: float) -> float:
    """δ of one release at `epsilon`."""
    above = loss.losses > epsilon
    return loss.infinite + float(loss.masses[above] @ -np.expm1(epsilon - loss.losses[above]))


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("share", [0.5, 0.02])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.1])
@pytest.mark.parametrize("count", [1, 500])
def test_gaussian_from_above_on_every_grid(mu: float, share: float, delta: float, count: int) -> None:
    value = pld.compose_epsilon([(pld.gaussian_loss(mu, share * mu), count)], delta)
    exact = gaussian_epsilon(mu * math.sqrt(count), delta)
    assert exact * (1 - 1e-9) <= value <= exact * (1.3 if share == 0.5 else 1.0005) + 1e-9


def test_plain_rounding_down_would_not_be_a_bound() -> None:
    """Negative control: the same losses moved one bin down, and the figure falls below the exact one."""
    mu, interval = 0.3, 0.05
    loss = pld.gaussian_loss(mu, interval)
    moved = pld.LossDistribution(interval, loss.offset - 1, loss.masses, loss.infinite)
    exact = gaussian_epsilon(mu * math.sqrt(50), 1e-5)
    assert pld.compose_epsilon([(moved, 50)], 1e-5) < exact < pld.compose_epsilon([(loss, 50)], 1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_single_distributions_meet_the_hockey_stick_on_the_grid(epsilon: float) -> None:
    assert hockey_stick(pld.gaussian_loss(0.4, 0.1), epsilon) == pytest.approx(gaussian_delta(0.4, epsilon), rel=1e-9)
    # Lap(0, 1) against Lap(s, 1): delta = 1 - exp((epsilon - s)/2).
    expected = max(0.0, -math.expm1((epsilon - 0.8) / 2))
    assert hockey_stick(pld.laplace_loss(0.8, 0.1), epsilon) == pytest.approx(expected, abs=1e-14)


@given(st.floats(0.0, 1.5), st.floats(0.001, 0.9))
def test_in_between_the_discrete_hockey_stick_lies_above(epsilon: float, interval: float) -> None:
    assert hockey_stick(pld.gaussian_loss(0.5, interval), epsilon) >= gaussian_delta(0.5, epsilon) * (1 - 1e-9)
    exact = max(0.0, -math.expm1((epsilon - 0.7) / 2))
    assert hockey_stick(pld.laplace_loss(0.7, interval), epsilon) >= exact - 1e-14


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.01), (1.0, 0.3), (5.0, 0.9)])
def test_sampled_gaussian_single_step_against_the_closed_form(sigma: float, rate: float) -> None:
    """Hockey sticks of both directions by the threshold on x."""
    from scipy.special import ndtr

    remove, add = pld.sampled_gaussian_losses(sigma, rate, 0.01)
    for epsilon in (0.0, 0.05, 0.5):
        t = sigma**2 * math.log1p(math.expm1(epsilon) / rate) + 0.5
        p = (1 - rate) * ndtr(-t / sigma) + rate * ndtr((1 - t) / sigma)
        exact = p - math.exp(epsilon) * ndtr(-t / sigma)
        assert exact * (1 - 1e-9) - 1e-15 <= hockey_stick(remove, epsilon) <= exact * 1.01 + 1e-15
        if math.expm1(-epsilon) / rate > -1:
            t = sigma**2 * math.log1p(math.expm1(-epsilon) / rate) + 0.5
            q = (1 - rate) * ndtr(t / sigma) + rate * ndtr((t - 1) / sigma)
            exact = ndtr(t / sigma) - math.exp(epsilon) * q
            assert exact * (1 - 1e-9) - 1e-15 <= hockey_stick(add, epsilon) <= exact * 1.01 + 1e-15
        else:
            assert hockey_stick(add, epsilon) <= 1e-12


def test_tiny_deltas_are_resolved() -> None:
    """An untilted transform has an absolute error of 1e-16 and cannot see delta = 1e-18."""
    loss = pld.gaussian_loss(0.1, 0.002)
    exact = gaussian_delta(1.0, 8.5)
    assert exact < 1e-16
    assert 8.5 <= pld.compose_epsilon([(loss, 100)], exact) <= 8.5 * 1.001


def test_infinite_loss_composes() -> None:
    loss = pld.LossDistribution(1.0, 0, np.array([0.999]), 0.001)
    total = 1 - 0.999**10
    assert pld.compose_epsilon([(loss, 10)], total * (1 - 1e-6)) == math.inf
    assert pld.compose_epsilon([(loss, 10)], total * (1 + 1e-6)) == 0.0


@pytest.mark.parametrize("count", [10**6, pytest.param(10**8, marks=pytest.mark.slow), 10**10])
def test_the_margin_grows_with_the_number_of_releases(count: int) -> None:
    """A Gaussian's own closed form lies below its loss distribution, however often it is composed."""
    mu = 1.0 / math.sqrt(count)
    exact = gaussian_epsilon(1.0, 1e-5)
    loss = pld.gaussian_loss(mu, mu / 60.0)
    found = pld.compose_epsilon([(loss, count)], 1e-5)
    assert exact <= found <= exact * 1.05 or math.isinf(found)
    assert pld._safety([(loss, count)]) >= 16 * 2.0**-53 * count
    assert pld._safety([(loss, 10)]) == pld._SAFETY
