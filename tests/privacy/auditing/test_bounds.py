"""Audited lower bounds stay below what is true, and rise above what is falsely claimed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privacy import clopper_pearson_epsilon, gaussian_epsilon
from privacy.auditing import clopper_pearson_interval, gaussian_audit_epsilon, gaussian_audit_mu


def play(mu: float, trials: int, threshold: float) -> tuple[int, int]:
    rng = np.random.default_rng(0)
    present = rng.normal(mu, 1.0, trials) > threshold
    absent = rng.normal(0.0, 1.0, trials) > threshold
    return int(present.sum()), int(absent.sum())


def test_interval_against_scipy() -> None:
    from scipy.stats import binomtest

    for k, n in ((0, 10), (3, 10), (10, 10), (137, 1000)):
        expected = binomtest(k, n).proportion_ci(0.99, method="exact")
        assert clopper_pearson_interval(k, n, 0.99) == pytest.approx((expected.low, expected.high), abs=1e-10)


def test_audit_lies_below_the_truth_and_above_a_broken_claim() -> None:
    mu, delta = 2.0, 1e-5
    hits, alarms = play(mu, 100_000, 2.5)
    truth = gaussian_epsilon(mu, delta)
    audited = clopper_pearson_epsilon(hits, alarms, 100_000, delta, 0.99)
    assert 0.0 < audited < truth
    # Negative control: noise at a third of its scale, sold at the same price.
    hits, alarms = play(3 * mu, 100_000, 4.0)
    assert gaussian_audit_epsilon(hits, alarms, 100_000, delta, 0.99) > truth


def test_gaussian_audit_is_tighter_and_still_valid() -> None:
    hits, alarms = play(2.0, 100_000, 1.0)
    mu = gaussian_audit_mu(hits, alarms, 100_000, 0.99)
    assert 1.9 < mu < 2.0
    assert gaussian_audit_epsilon(hits, alarms, 100_000, 1e-5, 0.99) > clopper_pearson_epsilon(
        hits, alarms, 100_000, 1e-5, 0.99
    )


def test_coverage() -> None:
    """Randomized response at epsilon = 1: at confidence 0.9, at most a tenth of the games may claim more than 1."""
    rng = np.random.default_rng(1)
    p = math.e / (1 + math.e)
    games = [
        clopper_pearson_epsilon(int(rng.binomial(500, p)), int(rng.binomial(500, 1 - p)), 500, 0.0, 0.9)
        for _ in range(400)
    ]
    assert sum(value > 1.0 for value in games) <= 40
    assert max(games) > 0.8


def test_both_attack_sides_count() -> None:
    forward = clopper_pearson_epsilon(990, 500, 1000, 0.0, 0.95)
    mirrored = clopper_pearson_epsilon(500, 10, 1000, 0.0, 0.95)
    assert forward == pytest.approx(mirrored, rel=1e-9)
    assert forward > 3.0


def test_a_blind_attacker_shows_nothing() -> None:
    assert clopper_pearson_epsilon(500, 500, 1000, 1e-5, 0.95) == 0.0
    assert clopper_pearson_epsilon(0, 1000, 1000, 1e-5, 0.95) == 0.0
    assert gaussian_audit_mu(0, 1000, 1000, 0.95) == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        lambda: clopper_pearson_epsilon(11, 0, 10, 0.0, 0.95),
        lambda: clopper_pearson_epsilon(0, -1, 10, 0.0, 0.95),
        lambda: clopper_pearson_epsilon(0, 0, 0, 0.0, 0.95),
        lambda: clopper_pearson_epsilon(1, 1, 10, 1.0, 0.95),
        lambda: clopper_pearson_epsilon(1, 1, 10, 0.0, 1.0),
    ],
)
def test_meaningless_arguments_raise(bad: object) -> None:
    with pytest.raises(ValueError, match=r"must be .*got"):
        bad()  # type: ignore[operator]
