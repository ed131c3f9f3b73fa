"""The charge of one release, and the plan of a run, which its guarantee covers.

Stopping a run early, or continuing it differently, may depend on what the first releases showed. A plan therefore keeps
the charge of each planned release, at the noise it was planned with, and never shrinks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privacy.checks import check_count
from privacy.events import Release, release_from_dict
from privacy.published import Claim, claim_from_dict


@dataclass(frozen=True)
class Charge:
    """One release as the ledger counts it.

    Attributes:
        release: Its cost under record-level neighbours.
        claim: What a paper's theorem counts for it; None if no theorem does.
        queries: Number of inputs the teacher was queried with.
        training: Identity of the training it belongs to; None if unknown, so that nothing else bounds it.
        words: What was released, for a reader; empty if that is no response of a mechanism. No part of the cost.
    """

    release: Release
    claim: Claim | None = None
    queries: int = 1
    training: str | None = None
    words: str = field(default="", compare=False)

    def covers(self, planned: Charge) -> bool:
        """Whether this charge uses up a planned one; see `Release.covers`. A run's calls belong to one training."""
        return self.queries == planned.queries and self.release.covers(planned.release)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and checkpoints; see `from_dict`."""
        return {
            "release": self.release.to_dict(),
            "claim": None if self.claim is None else self.claim.to_dict(),
            "queries": self.queries,
            "training": self.training,
            "words": self.words,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charge:
        claim = values["claim"]
        return cls(
            release=release_from_dict(values["release"]),
            claim=None if claim is None else claim_from_dict(claim),
            queries=check_count("queries", values["queries"]),
            training=values["training"],
            words=str(values.get("words", "")),
        )


def unmade(planned: Mapping[Charge, int], made: Mapping[Charge, int]) -> Counter[Charge]:
    """What is left of `planned` once `made` has been charged; each charge uses up at most one planned one."""
    return _matched(planned, made)[0]


def _matched(planned: Mapping[Charge, int], made: Mapping[Charge, int]) -> tuple[Counter[Charge], Counter[Charge]]:
    """What is left of the plan, and which charges were in none."""
    left, spare = Counter(planned), Counter(made)
    # Identical charges first: one that could cover two kinds of planned charges covers its own kind.
    for same in (True, False):
        for wanted in left:
            for charge in spare:
                if charge.covers(wanted) and (charge.release == wanted.release) is same:
                    used = min(left[wanted], spare[charge])
                    left[wanted] -= used
                    spare[charge] -= used
    return +left, +spare


@dataclass(frozen=True)
class Plan:
    """What a run plans to release in all.

    Attributes:
        calls: Number of calls of the mechanism; None if the run's length is not known beforehand.
        charges: What these may be charged, and everything else planned at any time since the first release.
        changed: Whether something was added after the first release: the charges then compose only if that was not
            chosen by looking at the results.
    """

    calls: int | None = None
    charges: Mapping[Charge, int] = field(default_factory=dict)
    changed: bool = False

    def fixed(self, wanted: int | None, *, made: int, charged: Mapping[Charge, int], cost: Charge) -> Plan:
        """Returns the plan with which a fit begins; this is the previous one.

        Args:
            wanted: Total number of calls after this fit, including those before it.
            made: Number of calls before it.
            charged: What the run has been charged.
            cost: What each further call may be charged.
        """
        if not made:
            return Plan(wanted, {cost: wanted} if wanted else {})
        planned = Counter(self.charges)
        left, spare = _matched(planned, charged)
        more = max(0, (wanted or 0) - made)
        grown = self.calls is None or wanted is None or wanted > self.calls
        if more > left[cost]:
            grown = True
            unplanned = sum(number for other, number in spare.items() if other.covers(cost))
            planned[cost] += more - left[cost] + unplanned
        calls = None if wanted is None else max(wanted, self.calls or 0)
        return Plan(calls, dict(+planned), self.changed or grown)

    def joined(self, other: Plan | None) -> Plan:
        """Merges a later plan of the same run: a checkpoint may be older than the plan in the ledger."""
        if other is None:
            return self
        charges = Counter(self.charges) | Counter(other.charges)
        calls = None if None in (self.calls, other.calls) else max(self.calls or 0, other.calls or 0)
        return Plan(calls, dict(charges), self.changed or other.changed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a ledger and for checkpoints; see `from_dict`."""
        return {
            "planned_calls": self.calls,
            "plan_changed": self.changed,
            "planned_charges": [[charge.to_dict(), n] for charge, n in self.charges.items()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        calls, charges = values["planned_calls"], values["planned_charges"]
        return cls(
            calls=None if calls is None else check_count("planned_calls", calls),
            charges={Charge.from_dict(charge): check_count("count", count) for charge, count in charges},
            changed=bool(values["plan_changed"]),
        )
