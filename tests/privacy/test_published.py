"""The papers' formulas on the papers' worked figures, and what claims of one run add up to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privacy import published_dgd_epsilon
from privacy.numerics.epsilon import rdp_slope_epsilon
from privacy.published import NoisyVotesClaim, RdpSlope, WholeRun, published_epsilon


@pytest.mark.parametrize("slope", [1e-12, 1e-6, 0.02, 1.63, 10.24, 500.0, 1e8])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.3])
def test_the_order_is_free(slope: float, delta: float) -> None:
    """No order on a fine grid does better, and a coarse fixed grid does worse."""
    best = rdp_slope_epsilon(slope, delta)
    t = np.linspace(-25, 45, 400_001)
    order = 1 + np.exp(t)
    curve = slope * order - np.log1p(np.exp(-t)) - (math.log(delta) + np.log(order)) * np.exp(-t)
    assert best <= max(0.0, curve.min()) * (1 + 1e-9) + 1e-12
    assert best >= max(0.0, curve.min()) * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize(("queries", "epsilon"), [(27, 1.3142), (400, 5.7985), (1000, 10.0871), (1300, 11.9007)])
def test_dgd_formula(queries: int, epsilon: float) -> None:
    assert published_dgd_epsilon(queries, 1 / 20, 1e-5, advanced=True) == pytest.approx(epsilon, abs=5e-5)
    assert published_dgd_epsilon(queries, 1 / 20, 1e-5, 0.01, advanced=True) == pytest.approx(epsilon + 0.01, abs=5e-5)


@pytest.mark.parametrize(("queries", "epsilon0"), [(1, 1e-3), (27, 0.05), (1000, 0.05), (1300, 4.0)])
def test_dgd_moments_accountant(queries: int, epsilon0: float) -> None:
    """No whole order does better; Papernot et al. 2017, Theorems 1 and 2, with γ = ε₀/2."""
    gamma, orders = epsilon0 / 2, range(1, 20_000)
    best = min((queries * 2 * gamma**2 * order * (order + 1) - math.log(1e-5)) / order for order in orders)
    assert published_dgd_epsilon(queries, epsilon0, 1e-5, 0.01) == pytest.approx(best + 0.01, rel=1e-12)
    assert best < published_dgd_epsilon(queries, epsilon0, 1e-5, advanced=True)
    assert published_dgd_epsilon(0, epsilon0, 1e-5) == 0.0


def test_what_no_theorem_counts_again() -> None:
    """Nothing, a claim for a whole run, and the noise on latent codes."""
    assert published_epsilon({WholeRun("LabelDP", 1.0): 0, RdpSlope("DPDFD", 1.0): 0}, 1e-5) == 0.0
    assert published_epsilon({WholeRun("LabelDP", 1.0): 99}, 1e-5) == 1.0
    votes = NoisyVotesClaim("DGD", 0.05, 0.01)
    assert published_epsilon({votes: 400}, 1e-5) == published_dgd_epsilon(400, 0.05, 1e-5, 0.01)


def test_slopes_of_one_theorem_add_and_theorems_do_not_mix() -> None:
    a, b, other = RdpSlope("DPDFD Theorem 3", 0.01), RdpSlope("DPDFD Theorem 3", 0.02), RdpSlope("DPSD Theorem 1", 0.01)
    assert published_epsilon({a: 2, b: 1}, 1e-5) == pytest.approx(rdp_slope_epsilon(0.04, 1e-5))
    assert published_epsilon({a: 2, b: 1}, 1e-5) > published_epsilon({a: 2}, 1e-5)
    assert published_epsilon({a: 1, other: 1}, 1e-5) == math.inf
    assert published_epsilon({a: 1, NoisyVotesClaim("DGD", 0.05): 1}, 1e-5) == math.inf
    assert published_epsilon({NoisyVotesClaim("DGD", 0.05): 1, NoisyVotesClaim("DGD", 0.06): 1}, 1e-5) == math.inf
