"""When the fits of a plan would end, by their estimates: what `work` would make, without making it."""

from __future__ import annotations

import math

from sweeps.runner.plan import Plan, estimate

__all__ = ["schedule"]


def schedule(plan: Plan, *, jobs: int, seconds: float = math.inf) -> dict[str, float]:
    """Follows the rule of `work`: whoever is free takes the first fit whose parents are there and that ends in time.

    Args:
        plan: The fits.
        jobs: Processes that share them.
        seconds: Time limit.

    Returns:
        Seconds from now at which each fit has ended, by name: 0 for those that are done. Those that would not end in
        time are left out; a fit without an estimate counts as 0 s.
    """
    notes = plan.store.notes()
    ends = {name: 0.0 for name, task in plan.tasks.items() if plan.current(task) is not None}
    costs = {name: estimate(task, notes)[0] or 0.0 for name, task in plan.tasks.items() if name not in ends}
    free = [0.0] * jobs
    while free and costs:
        now = min(free)
        free.remove(now)
        for name in list(costs):
            parents = plan.tasks[name].parents.values()
            known = all(parent in ends or parent in costs for parent in parents)
            if not known or now + costs[name] > seconds:
                # It will not fit in later either, nor will its children.
                del costs[name]
            elif all(ends.get(parent, math.inf) <= now for parent in parents):
                ends[name] = now + costs.pop(name)
                free.append(ends[name])
                break
        else:
            # A process that finds nothing waits for the next fit to end, or has nothing left to do.
            if later := [end for end in free if end > now]:
                free.append(min(later))
    return ends
