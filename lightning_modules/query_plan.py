"""How many queries a run plans. The guarantee is about the plan, not about what happened to be released."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from privacy.annotators import Annotator
from privacy.plan import Plan

__all__ = ["QueryPlan"]


class QueryPlan:
    """What a run asks the annotator for in all, fixed before its first call and never made smaller; see `Plan`."""

    def __init__(self) -> None:
        self._plan = Plan()

    @property
    def calls(self) -> int | None:
        """Calls of the annotator; None where the run has no end that is known beforehand."""
        return self._plan.calls

    @property
    def changed(self) -> bool:
        """Whether something was added after calls were made."""
        return self._plan.changed

    @property
    def covered(self) -> Plan | None:
        """What a guarantee has to cover besides what was released; None where there is no plan."""
        return self._plan if self._plan.calls is not None or self._plan.charges else None

    def fix(self, annotator: Annotator, wanted: Callable[[], int | None]) -> None:
        """Fixes the plan when a fit begins, and has the annotator write it into the ledger.

        Whoever resumes for fewer calls, with other noise or under another target may have seen what the first ones
        gave: the first plan stays, at its own noise.

        Args:
            annotator: Knows what was charged, and what a call costs.
            wanted: See `Annotator.fix_plan`.
        """
        self._plan = annotator.fix_plan(self._plan, wanted)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self._plan.to_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`; of a checkpoint without one there is no plan."""
        self._plan = Plan.from_dict(state) if "planned_calls" in state else Plan()
