"""Lower bounds on ε from a distinguishing game: what an attacker achieved, at a stated confidence."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, betaln, expit, ndtri, xlog1py, xlogy

from privacy.checks import check_count, check_delta
from privacy.numerics.gaussian import gaussian_epsilon


def clopper_pearson_interval(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Exact two-sided interval for a binomial proportion (Clopper and Pearson 1934).

    >>> [round(x, 4) for x in clopper_pearson_interval(8, 10, 0.95)]
    [0.4439, 0.9748]
    """
    n = check_count("trials", trials, minimum=1)
    k = check_count("successes", successes)
    if k > n:
        raise ValueError(f"successes must be at most trials = {n}, got {k}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    tail = 0.5 * (1.0 - confidence)
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1.0 - tail))
    return low, high


def clopper_pearson_epsilon(
    true_positives: int, false_positives: int, trials: int, delta: float, confidence: float
) -> float:
    """A lower bound on ε at `confidence` from `trials` rounds with the record and `trials` without it.

    (ε, δ)-DP forces TPR <= e^ε FPR + δ and 1 - FPR <= e^ε (1 - TPR) + δ for every
    attacker (Kairouz, Oh and Viswanath 2015). Both one-sided Clopper-Pearson limits are taken at (1 - confidence)/2, so
    that both hold together.

    Args:
        true_positives: rounds with the record in which the attacker said so.
        false_positives: rounds without it in which the attacker said it was there.
        trials: rounds of either kind.
        delta: the claim's δ, [0, 1).
        confidence: probability in (0, 1) that the bound is valid.

    Returns:
        A lower bound, 0 where the game shows nothing. An upper bound below it is a failure of the claim.

    Raises:
        ValueError: Counts exceed `trials`, or `delta` or `confidence` is invalid.

    >>> round(clopper_pearson_epsilon(990, 10, 1000, 1e-5, 0.95), 2)
    3.98
    """
    delta = check_delta(delta, zero=True)
    # The two-sided interval at `confidence` has (1 - confidence)/2 in each tail; only one tail of each is used.
    tpr_low, _ = clopper_pearson_interval(true_positives, trials, confidence)
    _, fpr_high = clopper_pearson_interval(false_positives, trials, confidence)
    return max(0.0, _log_ratio(tpr_low - delta, fpr_high), _log_ratio(1.0 - fpr_high - delta, 1.0 - tpr_low))


def gaussian_audit_mu(true_positives: int, false_positives: int, trials: int, confidence: float) -> float:
    """A lower bound on μ from the same game, for mechanisms that are Gaussian (μ-GDP) **only**.

    Under μ-GDP, Phi^-1(TPR) - Phi^-1(FPR) <= μ for every attacker (Nasr et al. 2023), far tighter than
    Clopper-Pearson.

    >>> round(gaussian_audit_mu(990, 10, 1000, 0.95), 2)
    4.18
    """
    tpr_low, _ = clopper_pearson_interval(true_positives, trials, confidence)
    _, fpr_high = clopper_pearson_interval(false_positives, trials, confidence)
    if tpr_low <= 0.0 or fpr_high >= 1.0:
        return 0.0
    return max(0.0, float(ndtri(tpr_low)) - float(ndtri(fpr_high)))


def gaussian_audit_epsilon(
    true_positives: int, false_positives: int, trials: int, delta: float, confidence: float
) -> float:
    """The lower bound of `gaussian_audit_mu` as an ε at `delta`; for Gaussian mechanisms **only**."""
    return gaussian_epsilon(gaussian_audit_mu(true_positives, false_positives, trials, confidence), check_delta(delta))


def one_run_epsilon(correct: int, guesses: int, *, records: int, delta: float, confidence: float) -> float:
    """A lower bound on ε from guesses about many records of one run (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Each record took part by a fair coin of its own, and the attacker, who has seen only what was released, guessed
    `guesses` of the coins. Under (ε, 0)-DP it is right no more often than each time with probability e^ε / (1 + e^ε):
    a Clopper-Pearson limit, though the guesses depend on one another. δ adds what the theorem says.

    Args:
        correct: Right guesses.
        guesses: How many the attacker made, fixed before it saw anything.
        records: How many coins there were.
        delta: The claim's δ, [0, 1).
        confidence: Probability in (0, 1) that the bound is valid.

    Returns:
        A lower bound, 0 where the guesses show nothing.

    Raises:
        ValueError: More right guesses than guesses or more guesses than records, or an invalid setting.

    >>> round(one_run_epsilon(990, 1000, records=1000, delta=1e-5, confidence=0.95), 2)
    4.06
    """
    delta = check_delta(delta, zero=True)
    right = check_count("correct", correct)
    made = check_count("guesses", guesses, minimum=max(1, right))
    coins = check_count("records", records, minimum=made)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    if not right:
        return 0.0
    fewer = right - np.arange(1, right + 1)
    weights = -betaln(fewer + 1, made - fewer + 1) - math.log(made + 1)

    def surplus(epsilon: float) -> float:
        """Probability of so many right guesses at this ε, at most, less what is allowed."""
        chance = float(expit(epsilon))
        tail = float(betainc(right, made - right + 1, chance))
        # Those of 1 to i fewer right guesses.
        short = np.cumsum(np.exp(weights + xlogy(fewer, chance) + xlog1py(made - fewer, -chance)))
        worst = float((short / (right - fewer)).max())
        return tail + 2 * coins * delta * worst - (1 - confidence)

    if surplus(0.0) >= 0.0:
        return 0.0
    # At an accuracy that rounds to 1 the tail is 1.
    return float(brentq(surplus, 0.0, 40.0, xtol=1e-9)) - 1e-9


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0.0:
        return 0.0
    return math.inf if denominator <= 0.0 else math.log(numerator / denominator)
