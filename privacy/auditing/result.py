"""What an audit found, in figures and in words."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

_METHODS = {
    "clopper_pearson": "Clopper-Pearson limits, valid for any mechanism",
    "gaussian": "a bound that is valid for Gaussian mechanisms only",
}


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε, what it was reached with, and what it says about a claim.

    Attributes:
        epsilon_lower: No ε below this one holds at `delta`, at `confidence`. 0 shows nothing.
        delta: Of the bound and of the claim.
        confidence: Probability that the bound is valid.
        method: `clopper_pearson` or `gaussian` (Gaussian mechanisms **only**).
        trials: Rounds of either kind that the bound rests on.
        hits: Rounds with the record in which the attacker said so.
        alarms: Rounds without it in which the attacker said it was there.
        threshold: Score above which the attacker says that the record is there.
        claimed_epsilon: Upper bound that was claimed at `delta`, None where none was.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    method: str
    trials: int
    hits: int
    alarms: int
    threshold: float | None = None
    claimed_epsilon: float | None = None

    @property
    def fails(self) -> bool:
        """Whether a claim was made that the bound contradicts."""
        return self.claimed_epsilon is not None and self.epsilon_lower > self.claimed_epsilon

    @property
    def statement(self) -> str:
        """The finding in plain words.

        >>> AuditResult(3.98, 1e-5, 0.95, "clopper_pearson", 1000, 990, 10, 0.5, claimed_epsilon=1.0).statement
        'epsilon is at least 3.98 at delta=1e-05, with 95% confidence (Clopper-Pearson limits, valid for any mechanism;
        1000 rounds with the record and 1000 without it). The claim fails: it says that epsilon is at most 1.'
        """
        basis = f"{self.trials} rounds with the record and {self.trials} without it"
        text = (
            f"epsilon is at least {self.epsilon_lower:.4g} at delta={self.delta:g}, "
            f"with {100 * self.confidence:.6g}% confidence ({_METHODS[self.method]}; {basis})."
        )
        if self.claimed_epsilon is None:
            return text
        if self.fails:
            return f"{text} The claim fails: it says that epsilon is at most {self.claimed_epsilon:.4g}."
        return (
            f"{text} This does not contradict the claim that epsilon is at most {self.claimed_epsilon:.4g}; "
            "it does not confirm it either."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the verdict and the statement."""
        return {**dataclasses.asdict(self), "fails": self.fails, "statement": self.statement}
