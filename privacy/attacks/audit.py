"""Lower bounds on ε from an attacker's guesses about many records."""

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
    """A lower bound on ε and, if there is one, the claim to compare it with. A bound below the claim proves nothing.

    Attributes:
        epsilon_lower: No smaller ε holds at `delta`, with probability `confidence`. 0 shows nothing.
        delta: δ of the bound and of the claim.
        confidence: Probability that the bound is valid.
        claimed_epsilon: Claimed upper bound at `delta`, if any.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    claimed_epsilon: float | None = None

    @property
    def fails(self) -> bool:
        """Whether the bound refutes the claim."""
        return self.claimed_epsilon is not None and self.epsilon_lower > self.claimed_epsilon

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fails": self.fails}


def one_run_epsilon(correct: int, guesses: int, *, records: int, delta: float, confidence: float) -> float:
    """Lower bound on ε from guesses about many records of one run (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    A fair coin per record decided whether it took part, and the attacker, who has only seen the release, guessed
    `guesses` of the coins. Under (ε, 0)-DP it is right at most as often as with independent probabilities
    e^ε / (1 + e^ε), which gives a Clopper-Pearson limit although guesses are dependent; δ adds the theorem's term. The
    bound is 0 if the guesses show nothing.

    Args:
        correct: Number of right guesses.
        guesses: Number of guesses, fixed before the attacker saw anything.
        records: Number of coins.
        delta: The claim's δ, [0, 1).
        confidence: Probability in (0, 1) that the bound is valid.

    Raises:
        ValueError: `correct` exceeds `guesses`, `guesses` exceeds `records`, or a setting is invalid.

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
        """Upper bound on the probability of `correct` right guesses at this ε, minus 1 - `confidence`."""
        chance = float(expit(epsilon))
        tail = float(betainc(right, made - right + 1, chance))
        # Probabilities of 1 to i fewer right guesses.
        short = np.cumsum(np.exp(weights + xlogy(fewer, chance) + xlog1py(made - fewer, -chance)))
        worst = float((short / (right - fewer)).max())
        return tail + 2 * coins * delta * worst - (1 - confidence)

    if surplus(0.0) >= 0.0:
        return 0.0
    # At ε = 40 the accuracy rounds to 1, and the tail is 1.
    return float(brentq(surplus, 0.0, 40.0, xtol=1e-9)) - 1e-9
