"""Sessions of tests that have no run."""

from __future__ import annotations

from typing import Any

from support.short_names import budgeted

from privacy import Budget
from privacy.mechanisms import Mechanism, Shape
from privacy.session import PrivacySession

__all__ = ["session_of"]


def session_of(kind: type[Mechanism], shape: Shape, /, *, opened: bool = True, **settings: Any) -> PrivacySession:
    """A session of such a mechanism; the budget's settings stand among the mechanism's."""
    given = budgeted({"mechanism": settings})
    made = PrivacySession(kind(**given["mechanism"]), shape, budget=Budget(**given.get("budget", {})))
    if opened:
        made.open(private_data="digits/train")
    return made
