"""A lower bound on ε from an attacker's guesses about many records."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaln, expit, xlog1py, xlogy

from privacy.checks import check_count, check_delta


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε, and what it says about a claim. One that stays below a claim proves nothing.

    Attributes:
        epsilon_lower: No ε below this one holds at `delta`, at `confidence`. 0 shows nothing.
        delta: Of the bound and of the claim.
        confidence: Probability that the bound is valid.
        claimed_epsilon: Upper bound that was claimed at `delta`, None where none was.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    claimed_epsilon: float | None = None

    @property
    def fails(self) -> bool:
        """Whether a claim was made that the bound contradicts."""
        return self.claimed_epsilon is not None and self.epsilon_lower > self.claimed_epsilon

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fails": self.fails}


def one_run_epsilon(correct: int, guesses: int, *, records: int, delta: float, confidence: float) -> float:
    """A lower bound on ε from guesses about many records of one run (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Each record took part by a fair coin of its own, and the attacker, who has seen only what was released, guessed
    `guesses` of the coins. Under (ε, 0)-DP it is right no more often than each time with probability e^ε / (1 + e^ε):
    a Clopper-Pearson limit, though the guesses depend on one another. δ adds what the theorem says. The bound is 0
    where the guesses show nothing.

    Args:
        correct: Right guesses.
        guesses: How many the attacker made, fixed before it saw anything.
        records: How many coins there were.
        delta: The claim's δ, [0, 1).
        confidence: Probability in (0, 1) that the bound is valid.

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
