"""Result of a membership attack: its ROC, and the lower bound on ε that its guesses give."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaln, expit, ndtri, xlog1py, xlogy
from sklearn.metrics import roc_curve

from privacy.checks import check_count, check_number

LEAST_AUC = 0.6
"""Least AUC, on networks that memorised their records, of a membership attack that has power."""
_LEAST_GUESSES = 8
_NONMEMBERS = 10
"""A false positive rate needs this many times its inverse non-members: 10,000 for 0.1 %."""


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
    check_number("delta", delta, least=0, below=1)
    right = check_count("correct", correct)
    made = check_count("guesses", guesses, minimum=max(1, right))
    coins = check_count("records", records, minimum=made)
    check_number("confidence", confidence, above=0, below=1)
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


@dataclass(frozen=True)
class AttackResult:
    """Scores of records for attacked models.

    Attributes:
        scores: (T, N) for N records and T models, larger for suspected members.
        members: (T, N), whether the record was a member.
        coins: Whether a fair coin per record and model decided membership, and no model's coins were used for another
            one's scores, as `audited` requires.

    Raises:
        ValueError: A score is nan, or there are only members, or none.
    """

    scores: NDArray[np.float64]
    members: NDArray[np.bool_]
    coins: bool = False

    def __post_init__(self) -> None:
        if np.isnan(self.scores).any():
            raise ValueError("scores must be numbers, got nan: a record has too few shadow models of a kind")
        if self.members.all() or not self.members.any():
            raise ValueError("members must hold members and others, got only one of the two")

    @property
    def auc(self) -> float:
        """Area under the ROC: probability that a member's score is above a non-member's."""
        return float(self._above[self.members].mean())

    def auc_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the AUC over records (DeLong, DeLong and Clarke-Pearson 1988).

        Scores of a record in several models form one cluster; the models count as fixed.
        """
        auc, inside = self.auc, self.members
        apart = np.where(inside, self._above, 1 - _share_below(self.scores, self.scores[inside])) - auc
        shares = apart / np.where(inside, inside.sum(), (~inside).sum())
        half = float(ndtri(0.5 + confidence / 2)) * math.sqrt(float((shares.sum(axis=0) ** 2).sum()))
        return max(0.0, auc - half), min(1.0, auc + half)

    def tpr_at(self, fpr: float) -> float | None:
        """True positive rate at a false positive rate; None if there are too few non-members."""
        others = np.sort(self.scores[~self.members])[::-1]
        if len(others) * fpr < _NONMEMBERS * (1 - 1e-9):
            return None
        return float((self.scores[self.members] > others[math.floor(len(others) * fpr + 1e-9)]).mean())

    def audited(self, *, delta: float, confidence: float = 0.95, claimed_epsilon: float | None = None) -> AuditResult:
        """Lower bound on record-level ε for adding or removing one record (Steinke, Nasr and Jagielski 2023).

        The attacker guesses about the records with the largest scores, or with the largest and the smallest, and
        abstains on the others. The numbers of guesses to try are fixed by the number of records and share
        1 - `confidence` equally, so that the best bound may be chosen.

        Args:
            delta: The claim's δ, [0, 1).
            confidence: Probability that the bound is valid, (0, 1).
            claimed_epsilon: Claimed upper bound at `delta`, if any.

        Raises:
            ValueError: Members were not drawn by coins, or a setting is out of range.
        """
        if not self.coins:
            raise ValueError("members must have been drawn by fair coins for a bound on epsilon")
        right = self.members.ravel()[np.argsort(-self.scores.ravel(), kind="stable")]
        most = len(right) // 2
        sizes = [most >> step for step in range(max(1, most.bit_length())) if most >> step >= _LEAST_GUESSES] or [most]
        share = 1 - (1 - confidence) / (2 * len(sizes))
        found = []
        for size in sizes:
            hits, rejections = int(right[:size].sum()), int((~right[-size:]).sum())
            for guesses, correct in ((size, hits), (2 * size, hits + rejections)):
                found.append(one_run_epsilon(correct, guesses, records=len(right), delta=delta, confidence=share))
        return AuditResult(max(found), delta, confidence, claimed_epsilon)

    def at_most(self, *, delta: float, confidence: float = 0.95) -> float:
        """Largest bound that `audited` could have given, if all scores had told members from non-members."""
        perfect = dataclasses.replace(self, scores=self.members.astype(np.float64))
        return perfect.audited(delta=delta, confidence=confidence).epsilon_lower

    def to_dict(self) -> dict[str, Any]:
        """Converts to plain values for JSON, without the scores; the ROC at 41 false positive rates from 0.01 %."""
        false, true, _ = roc_curve(self.members.ravel(), self.scores.ravel())
        grid = np.logspace(-4, 0, 41)
        return {
            "models": len(self.members),
            "members": int(self.members.sum()),
            "non_members": int((~self.members).sum()),
            "auc": self.auc,
            "auc_interval": list(self.auc_interval()),
            "tpr_at_0.1%": self.tpr_at(0.001),
            "tpr_at_1%": self.tpr_at(0.01),
            "roc": {"fpr": grid.tolist(), "tpr": np.interp(grid, false, true).tolist()},
        }

    @property
    def _above(self) -> NDArray[np.float64]:
        """Share of the non-members below each score; ties count half."""
        return _share_below(self.scores, self.scores[~self.members])


def _share_below(scores: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    ordered = np.sort(others)
    twice = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    return np.asarray(twice / (2 * len(ordered)))
