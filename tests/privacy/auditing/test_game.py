"""The game itself: its bounds are valid, they reach far, and it refuses what would make them invalid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.attacks import gaussian_score, laplace_score, table_score

from privacy import Gaussian, GaussianVotes, LaplaceVotes, audit, gaussian_epsilon
from privacy.auditing import Sampler, learnt_score

DELTA = 1e-5


def gaussian(rng: np.random.Generator, mean: float, scale: float = 1.0) -> Sampler:
    return lambda count: rng.normal(mean, scale, count)


def binary(rng: np.random.Generator, probability: float) -> Sampler:
    return lambda count: (rng.random(count) < probability).astype(np.int64)


@pytest.mark.parametrize("score", [lambda x: x, None])
def test_the_bound_is_valid_and_near(score: Any) -> None:
    rng = np.random.default_rng(0)
    truth = gaussian_epsilon(2.0, DELTA)
    general = audit(gaussian(rng, 2.0), gaussian(rng, 0.0), trials=20_000, delta=DELTA, confidence=0.99, score=score)
    assert 3.0 < general.epsilon_lower < truth
    special = audit(
        gaussian(rng, 2.0),
        gaussian(rng, 0.0),
        trials=20_000,
        delta=DELTA,
        confidence=0.99,
        score=score,
        method="gaussian",
        release=Gaussian(2.0),
    )
    assert 0.9 * truth < special.epsilon_lower < truth


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Randomized response at ε = 1, at confidence 0.8; the mutant picks its threshold on the draws that it counts."""
    rng = np.random.default_rng(1)
    keep = math.e / (1 + math.e)
    games = [
        audit(binary(rng, keep), binary(rng, 1 - keep), trials=200, delta=0.0, confidence=0.8).epsilon_lower
        for _ in range(200)
    ]
    assert sum(bound > 1.0 for bound in games) <= 0.2 * len(games)
    assert max(games) > 0.7

    def shown(there: Sampler, away: Sampler) -> bool:
        found = audit(there, away, trials=400, delta=0.0, confidence=0.5, score=lambda x: x)
        return found.epsilon_lower > 0.0

    def honest() -> bool:
        return shown(gaussian(rng, 0.0), gaussian(rng, 0.0))

    def peeking() -> bool:
        there, away = rng.normal(0, 1, 200), rng.normal(0, 1, 200)
        return shown(lambda count: there, lambda count: away)

    assert sum(honest() for _ in range(100)) <= 50
    assert sum(peeking() for _ in range(100)) > 65


def test_a_blind_attacker_shows_nothing() -> None:
    found = audit(lambda n: np.zeros(n), lambda n: np.zeros(n), trials=100, delta=DELTA, claimed_epsilon=0.0)
    assert found.epsilon_lower == 0.0
    assert not found.fails


def test_the_verdict_in_words() -> None:
    rng = np.random.default_rng(2)

    def found(claimed: float | None) -> Any:
        return audit(gaussian(rng, 3.0), gaussian(rng, 0.0), trials=2000, delta=DELTA, claimed_epsilon=claimed)

    assert found(0.01).fails
    assert "The claim fails: it says that epsilon is at most 0.01." in found(0.01).statement
    assert not found(100.0).fails
    assert "does not confirm it" in found(100.0).statement
    assert "laim" not in found(None).statement
    assert found(0.01).to_dict()["fails"] is True


def test_the_gaussian_method_is_refused_where_it_would_not_hold() -> None:
    def play(release: Any) -> Any:
        rng = np.random.default_rng(0)
        return audit(
            gaussian(rng, 1.0), gaussian(rng, 0.0), trials=100, delta=DELTA, method="gaussian", release=release
        )

    for release in (None, LaplaceVotes(2.0)):
        with pytest.raises(ValueError, match="release must be a Gaussian one"):
            play(release)
    assert "Gaussian mechanisms only" in play(GaussianVotes(1.0)).statement


def test_an_answer_that_only_one_input_gives_is_found_with_infinite_scores() -> None:
    rng = np.random.default_rng(0)
    there, away = [0.25, 0.5, 0.25], [0.5, 0.5, 0.0]
    found = audit(
        lambda n: rng.choice(3, n, p=there),
        lambda n: rng.choice(3, n, p=away),
        trials=2000,
        delta=0.0,
        score=table_score(there, away),
    )
    assert found.alarms == 0
    assert found.epsilon_lower > 3.5


def test_scores_are_log_likelihood_ratios() -> None:
    from scipy import stats

    x = np.random.default_rng(0).normal(size=(50, 3))
    there, away = np.array([1.0, 0.0, -1.0]), np.array([0.0, 0.5, 0.0])
    exact = (stats.laplace.logpdf(x, there, 2.0) - stats.laplace.logpdf(x, away, 2.0)).sum(axis=1)
    assert laplace_score(there, away, scale=2.0)(x) == pytest.approx(exact)
    exact = (stats.norm.logpdf(x, there) - stats.norm.logpdf(x, away)).sum(axis=1)
    assert np.ptp(gaussian_score(there, away)(x) - exact) < 1e-12
    answers = np.array([[0, 1], [1, 1]])
    assert table_score([0.2, 0.8], [0.6, 0.4])(answers) == pytest.approx([math.log(2 / 3), 2 * math.log(2)])
    learnt = learnt_score(np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0]))
    assert learnt(np.array([0, 1, 7])).tolist() == pytest.approx([math.log(3.5 / 1.5), -math.log(3.5 / 1.5), 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 7}, "trials"),
        ({"delta": -0.1}, "delta"),
        ({"delta": 0.0, "method": "gaussian", "release": Gaussian(1.0)}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"method": "guess"}, "method"),
        ({"score": lambda x: x[:, None]}, "score"),
        ({"score": lambda x: x * np.nan}, "score"),
        ({"mechanism_in": lambda n: np.zeros(n + 1)}, "outputs for"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    rng = np.random.default_rng(0)
    good: dict[str, Any] = {"mechanism_in": gaussian(rng, 1.0), "mechanism_out": gaussian(rng, 0.0)}
    with pytest.raises(ValueError, match=message):
        audit(**{**good, "trials": 100, "delta": DELTA, **change})
