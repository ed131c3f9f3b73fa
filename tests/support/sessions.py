"""Sessions of tests that have no run, and plans of those that make their calls without `fix_plan`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from support.short_names import budgeted
from torch import Tensor

from privacy import Budget
from privacy.mechanisms import Mechanism, Shape
from privacy.plan import Plan
from privacy.session import PrivacySession


def session_of(kind: type[Mechanism], shape: Shape, /, *, opened: bool = True, **settings: Any) -> PrivacySession:
    """A session of such a mechanism; the budget's settings stand among the mechanism's."""
    given = budgeted({"mechanism": settings})
    made = PrivacySession(kind(**given["mechanism"]), shape, budget=Budget(**given.get("budget", {})))
    if opened:
        made.open(private_data="digits/train")
    return made


def asked(session: PrivacySession, *private: Tensor, **settings: Any) -> Tensor:
    """What its own mechanism releases."""
    return session.release(session.mechanism, *private, **settings)


def plan_of(session: PrivacySession, calls: int) -> Plan:
    """A plan of so many calls in all: those made as they were charged, the others at today's settings."""
    made = Counter({charge: n for charge, n in session.account.counts(scope="run").items() if charge.queries})
    return Plan(calls, dict(made + Counter({session.cost: max(0, calls - session.calls_made())})))
