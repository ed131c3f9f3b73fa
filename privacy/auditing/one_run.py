"""Auditing with one run: many canaries, each included by a coin of its own (Steinke, Nasr and Jagielski 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from privacy.auditing.result import AuditResult
from privacy.checks import check_count, check_delta, check_nonnegative
from privacy.mechanisms.noise import NoiseSource, SystemNoise

__all__ = ["audit_one_run", "one_run_epsilon", "one_run_p_value"]

_STEP = 0.25


def one_run_p_value(*, correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are at most, if the mechanism is (ε, δ)-DP.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2: with W ~ Bin(guesses, e^ε/(1 + e^ε)) it is
    P[W >= correct] + 2 canaries δ max_i P[correct > W >= correct - i]/i.

    Args:
        correct: v, right guesses.
        guesses: r, canaries that the attacker did not abstain from.
        canaries: m, each included with probability 1/2, independently.
        epsilon: Of the hypothesis, at least 0.
        delta: Of the hypothesis, [0, 1).

    Returns:
        An upper bound on the probability, at most 1.

    Raises:
        ValueError: Counts that do not satisfy 0 <= correct <= guesses <= canaries, or parameters without meaning.

    >>> round(one_run_p_value(correct=75, guesses=100, canaries=100, epsilon=math.log(3), delta=0.0), 3)
    0.553
    """
    m, r, v = _counts(correct, guesses, canaries)
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_delta(delta, zero=True)
    mass = _binomial(r, epsilon)
    value = float(mass[v:].sum())
    if delta and v:
        value += 2.0 * m * delta * float(np.max(np.cumsum(mass[:v][::-1]) / np.arange(1, v + 1)))
    return min(1.0, value)


def one_run_epsilon(*, correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The largest ε below which every hypothesis is rejected: a lower bound at `confidence`.

    The number of guesses must have been fixed before the answers were known.

    Raises:
        ValueError: As for `one_run_p_value`, or a confidence outside (0, 1).

    >>> round(one_run_epsilon(correct=75, guesses=100, canaries=1000, delta=1e-4, confidence=0.95), 3)  # their p. 46
    0.673
    """
    m, r, v = _counts(correct, guesses, canaries)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")

    def rejected(epsilon: float) -> bool:
        value = one_run_p_value(correct=v, guesses=r, canaries=m, epsilon=epsilon, delta=delta)
        return value < 1.0 - confidence

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, _STEP
    # Upwards in steps: a claim is contradicted only if all smaller ones are as well.
    while rejected(high):
        low, high = high, high + _STEP
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def audit_one_run(
    mechanism: Callable[[NDArray[np.bool_]], ArrayLike],
    *,
    canaries: int,
    guesses: int,
    delta: float,
    confidence: float = 0.95,
    noise: NoiseSource | None = None,
    claimed_epsilon: float | None = None,
) -> AuditResult:
    """A lower bound from a single run in which each canary takes part or not by a fair coin.

    ε is that of including or leaving out one canary (add-or-remove, or zero-out, by what the mechanism does for
    those that are left out). The attacker guesses "in" for the largest half of `guesses` scores, "out" for the
    smallest, and abstains from the rest.

    Args:
        mechanism: Runs once on the coins, shape (canaries,), True for a canary that takes part; returns a score for
            each canary, shape (canaries,), larger where it seems to have taken part. Scores may use all that is
            released and nothing of the coins.
        canaries: m.
        guesses: r, at least 1 and at most m, fixed beforehand.
        delta: Of the claim, [0, 1).
        confidence: Probability in (0, 1) that the bound is valid.
        noise: Where the coins come from; None is the operating system.
        claimed_epsilon: Upper bound that somebody claims at `delta`, for the verdict.

    Raises:
        ValueError: Settings without meaning, or scores that are not one number per canary.
    """
    m = check_count("canaries", canaries, minimum=1)
    r = check_count("guesses", guesses, minimum=1)
    if r > m:
        raise ValueError(f"guesses must be at most canaries = {m}, got {r}")
    coins = (noise or SystemNoise()).words(m) % 2 == 1
    # A copy: what the mechanism does to its argument must not change what is compared with.
    scores = np.asarray(mechanism(coins.copy()), dtype=np.float64)
    if scores.shape != (m,) or np.isnan(scores).any():
        raise ValueError(f"mechanism must return one score per canary, shape ({m},), no NaN; got shape {scores.shape}")
    order = np.argsort(scores, kind="stable")
    outside, inside = order[: r - r // 2], order[m - r // 2 :]
    correct = int((~coins[outside]).sum() + coins[inside].sum())
    return AuditResult(
        epsilon_lower=one_run_epsilon(correct=correct, guesses=r, canaries=m, delta=delta, confidence=confidence),
        delta=float(delta),
        confidence=float(confidence),
        method="one_run",
        trials=m,
        hits=correct,
        alarms=r - correct,
        claimed_epsilon=claimed_epsilon,
    )


def _counts(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    m, r, v = check_count("canaries", canaries), check_count("guesses", guesses), check_count("correct", correct)
    if not v <= r <= m:
        raise ValueError(f"counts must be correct <= guesses <= canaries, got {v}, {r} and {m}")
    return m, r, v


def _binomial(trials: int, epsilon: float) -> NDArray[np.float64]:
    """Probabilities of 0 to `trials` successes, each of probability e^ε/(1 + e^ε)."""
    k = np.arange(trials + 1, dtype=np.float64)
    log_binomial = gammaln(trials + 1.0) - gammaln(k + 1.0) - gammaln(trials - k + 1.0)
    # log q = -log(1 + e^-epsilon), and log(1 - q) lies epsilon below it.
    logs = log_binomial - trials * math.log1p(math.exp(-epsilon)) - (trials - k) * epsilon
    mass: NDArray[np.float64] = np.exp(logs)
    return mass
