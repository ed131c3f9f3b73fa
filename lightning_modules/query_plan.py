"""How many queries a run plans. The guarantee is about the plan, not about what happened to be released."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["QueryPlan"]


class QueryPlan:
    """Calls of the annotator that a run makes in all, fixed before its first and never made smaller.

    Attributes:
        calls: The plan; None where the run has no end that is known beforehand.
        changed: The plan grew after calls were made: no bound of a plan holds, and what was released is what counts.
    """

    def __init__(self) -> None:
        self.calls: int | None = None
        self.changed = False

    @property
    def covered(self) -> int | None:
        """Calls that a guarantee may be about; None for those that were made."""
        return None if self.changed else self.calls

    def fix(self, wanted: int | None, *, made: int, affordable: Callable[[int], int]) -> None:
        """Fixes the plan when a fit begins.

        Whoever resumes for fewer calls may have seen what the first ones gave: the first plan stays the one to cover.

        Args:
            wanted: Calls that this fit would make in all, with those before it.
            made: Calls before it.
            affordable: How many of so many further calls the target allows.
        """
        before = self.calls
        if made and (before is None or wanted is None or wanted > before):
            self.changed = True
        elif made and before is not None:
            wanted = made + affordable(max(0, before - made))
        self.calls = wanted

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"planned_calls": self.calls, "plan_changed": self.changed}

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self.calls = state.get("planned_calls")
        self.changed = bool(state.get("plan_changed"))
