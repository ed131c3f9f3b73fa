"""Plans of tests that make their calls without `fix_plan`."""

from __future__ import annotations

from collections import Counter

from privacy.plan import Plan
from privacy.session import PrivacySession

__all__ = ["plan_of"]


def plan_of(session: PrivacySession, calls: int) -> Plan:
    """A plan of so many calls in all: those made as they were charged, the others at today's settings."""
    made = Counter({charge: n for charge, n in session.account.counts(scope="run").items() if charge.queries})
    return Plan(calls, dict(made + Counter({session.cost: max(0, calls - session.calls_made())})))
