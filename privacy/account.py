"""What has been spent on one private data set, and whether one more release may be made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from privacy.checks import check_delta
from privacy.claims import Claim, published_epsilon
from privacy.ledger import Charge, Ledger
from privacy.pipelines import Bound, post_processing, released
from privacy.releases import Release, Unbounded

__all__ = ["Accounting", "BudgetExceeded", "PrivacyAccount", "Scope"]

Accounting = Literal["record", "published"]
Scope = Literal["private_data", "run"]


class BudgetExceeded(RuntimeError):
    """A release was refused because it would have cost more than the target."""


class PrivacyAccount:
    """Reads both ε figures off a ledger, and refuses the charge that would carry the chosen one past the target.

    Args:
        ledger: Where releases are counted.
        delta: δ of every figure, in (0, 1).
        target_epsilon: Most that may be spent (natural logarithms), or None for no limit.
        accounting: Which figure the target is about: `record` (a bound) or `published` (a paper's claim).
        scope: Whether figures and target count every run on the private data or this run alone.
        teacher: The teacher's own guarantee where it was trained with differential privacy: whatever is released about
            it is post-processing, at most as costly as it. None for a teacher that nothing bounds.

    Raises:
        ValueError: A setting that has no meaning.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        delta: float,
        target_epsilon: float | None = None,
        accounting: Accounting = "record",
        scope: Scope = "private_data",
        teacher: Bound | None = None,
    ) -> None:
        if target_epsilon is not None and not target_epsilon > 0:
            raise ValueError(f"target_epsilon must be above 0 or null, got {target_epsilon}")
        if accounting not in ("record", "published"):
            raise ValueError(f"accounting must be 'record' or 'published', got {accounting!r}")
        if scope not in ("private_data", "run"):
            raise ValueError(f"scope must be 'private_data' or 'run', got {scope!r}")
        self.ledger = ledger
        self.delta = check_delta(delta)
        self.target_epsilon = target_epsilon
        self.accounting: Accounting = accounting
        self.scope: Scope = scope
        self.teacher = teacher

    def counts(self, *, scope: Scope | None = None) -> Counter[Charge]:
        """Charges in the chosen scope (this account's own where None)."""
        return self.ledger.counts(run=self.ledger.run if (scope or self.scope) == "run" else None)

    def epsilon(self, *, scope: Scope | None = None, counts: Mapping[Charge, int] | None = None) -> float:
        """Record-level ε at δ of `counts`, by default of everything charged so far; `inf` where nothing bounds it."""
        charges = self.counts(scope=scope) if counts is None else counts
        releases: Counter[Release] = Counter()
        for charge, count in charges.items():
            releases[charge.release] += count
        if not releases:
            return 0.0
        return self._bound(releases).epsilon(self.delta)

    def _bound(self, releases: Mapping[Release, int]) -> Bound:
        answers = released(releases)
        return answers if self.teacher is None else post_processing(answers, self.teacher)

    def rests_on_teacher(self, *, counts: Mapping[Charge, int] | None = None) -> bool:
        """Whether the record-level ε of `counts` is the teacher's own, smaller than that of the answers."""
        if self.teacher is None:
            return False
        releases: Counter[Release] = Counter()
        for charge, count in (self.counts() if counts is None else counts).items():
            releases[charge.release] += count
        return self.teacher.epsilon(self.delta) <= released(releases).epsilon(self.delta)

    def epsilon_published(self, *, scope: Scope | None = None, counts: Mapping[Charge, int] | None = None) -> float:
        """ε that the papers' own theorems give at δ: claims, not bounds. `inf` where no theorem covers the charges."""
        claims: Counter[Claim] = Counter()
        for charge, count in (self.counts(scope=scope) if counts is None else counts).items():
            if charge.claim is None:
                return math.inf
            claims[charge.claim] += count
        return published_epsilon(claims, self.delta)

    def unbounded(self, *, counts: Mapping[Charge, int] | None = None) -> list[str]:
        """Why no record-level ε holds for `counts`, by default for everything charged so far; empty where one does."""
        charges = self.counts() if counts is None else counts
        if self.teacher is not None and self.teacher.bounded:
            return []
        return sorted({_reason(charge) for charge in charges if not charge.release.bounded})

    def queries(self, *, scope: Scope | None = None) -> int:
        """Inputs that the teachers were asked about."""
        return sum(charge.queries * count for charge, count in self.counts(scope=scope).items())

    def epsilon_after(self, charge: Charge, more: int) -> float:
        """The figure that the target is about, if `more` further releases of this kind were charged."""
        counts = self.counts()
        counts[charge] += more
        figure = self.epsilon if self.accounting == "record" else self.epsilon_published
        return figure(counts=+counts)

    def affordable(self, charge: Charge, *, limit: int) -> int:
        """Largest number of further releases of this kind, up to `limit`, that stays within the target."""
        if self.target_epsilon is None or self.epsilon_after(charge, limit) <= self.target_epsilon:
            return limit
        low, high = 0, limit
        while high - low > 1:
            middle = (low + high) // 2
            if self.epsilon_after(charge, middle) <= self.target_epsilon:
                low = middle
            else:
                high = middle
        return low

    def charge(self, charge: Charge) -> None:
        """Counts one release before it is made, or refuses it.

        Raises:
            BudgetExceeded: It would carry the figure past the target. Nothing is charged.
            LedgerError: It could not be written down. Nothing is charged.
        """

        def afford() -> int:
            count = self.affordable(charge, limit=self.ledger.block)
            if count < 1:
                raise BudgetExceeded(self.refusal(charge))
            return count

        # The ledger asks while it holds its lock: two runs on one budget must not both be granted its rest.
        self.ledger.charge(charge, afford=None if self.target_epsilon is None else afford)

    def refusal(self, charge: Charge, *, calls: int = 1) -> str:
        """One paragraph on why so many more releases of this kind do not fit."""
        asked = "one more step" if calls == 1 else f"the {calls:,} calls that it begins with"
        where = "by this run" if self.scope == "run" else f"from {self.ledger.private_data} by all runs in its ledger"
        spent = self.epsilon() if self.accounting == "record" else self.epsilon_published()
        text = (
            f"target_epsilon={self.target_epsilon:g} ({self.accounting} accounting, delta={self.delta:g}) leaves no "
            f"room for {asked}: spent {where}: {spent:.6g}; with {asked}: {self.epsilon_after(charge, calls):.6g}."
        )
        if not charge.release.bounded and self.unbounded(counts={charge: 1}):
            text += f" No record-level ε holds here at all: {_reason(charge)}."
        elif self.accounting == "record":
            text += (
                " The record-level ε is the one that bounds something. To stay within it, raise noise_multiplier "
                "(of a label annotator: lower epsilon), lower the batch size, or transcribe a teacher that was itself "
                "trained with differential privacy; "
                "`accounting: published` stops by the paper's figure instead, which bounds no record."
            )
        return text

    def state(self) -> dict[str, Any]:
        """This run's identity and charges, plain values for a checkpoint."""
        charges = [[charge.to_dict(), count] for charge, count in self.ledger.counts(run=self.ledger.run).items()]
        return {"run": self.ledger.run, "private_data": self.ledger.private_data, "charges": charges}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the larger of what the ledger and a checkpoint's `state` hold.

        Raises:
            ValueError: The state is of another run or about other private data.
        """
        if state["run"] != self.ledger.run or state["private_data"] != self.ledger.private_data:
            raise ValueError(
                f"the checkpoint's privacy state is of run {state['run']} on {state['private_data']}, "
                f"the ledger's is run {self.ledger.run} on {self.ledger.private_data}"
            )
        self.ledger.restore({Charge.from_dict(charge): int(count) for charge, count in state["charges"]})


def _reason(charge: Charge) -> str:
    return charge.release.reason if isinstance(charge.release, Unbounded) else "no noise was added"
