"""Audited lower bounds stay below what is true, and rise above what is falsely claimed."""

from __future__ import annotations

import numpy as np
import pytest

from privacy import clopper_pearson_epsilon
from privacy.auditing import clopper_pearson_interval, gaussian_audit_epsilon, gaussian_audit_mu, one_run_epsilon


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


def test_gaussian_audit_is_tighter_and_still_valid() -> None:
    hits, alarms = play(2.0, 100_000, 1.0)
    mu = gaussian_audit_mu(hits, alarms, 100_000, 0.99)
    assert 1.9 < mu < 2.0
    assert gaussian_audit_epsilon(hits, alarms, 100_000, 1e-5, 0.99) > clopper_pearson_epsilon(
        hits, alarms, 100_000, 1e-5, 0.99
    )


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-4])
def test_guesses_about_one_run_are_as_unlikely_as_the_paper_s_code_says(delta: float) -> None:
    """The listing of Steinke, Nasr and Jagielski 2023, by scipy's binomial, which has twice delta for each coin."""
    from scipy.stats import binom

    def chance_of(right: int, guesses: int, records: int, epsilon: float, delta: float) -> float:
        accuracy = 1 / (1 + np.exp(-epsilon))
        fewer = np.arange(1, right + 1)
        most = float((binom.pmf(right - fewer, guesses, accuracy).cumsum() / fewer).max())
        return float(binom.sf(right - 1, guesses, accuracy)) + 2 * records * delta * most

    for right, guesses, records in ((30, 40, 40), (95, 100, 400), (250, 400, 4000)):
        found = one_run_epsilon(right, guesses, records=records, delta=delta, confidence=0.9)
        assert chance_of(right, guesses, records, found, delta) == pytest.approx(0.1, rel=1e-5)


def test_both_attack_sides_count() -> None:
    forward = clopper_pearson_epsilon(990, 500, 1000, 0.0, 0.95)
    mirrored = clopper_pearson_epsilon(500, 10, 1000, 0.0, 0.95)
    assert forward == pytest.approx(mirrored, rel=1e-9)
    assert forward > 3.0


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
