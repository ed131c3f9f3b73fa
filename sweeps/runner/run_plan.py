"""Runs what is missing of a plan, in this process or by an engine's workers, and says what that will be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from privacy.files import write_atomically
from sweeps.runner.engines import Engine
from sweeps.runner.plan import Plan, Progress
from sweeps.runner.work import POLL_SECONDS, work

__all__ = ["run_plan"]

AGAIN = "is made again, and whatever it asks of private data is charged again"


def run_plan(
    plan: Plan,
    run: Callable[[list[str]], Any],
    *,
    since: float,
    engine: Engine | None = None,
    say: Callable[[str], None] = print,
    strict: bool = False,
) -> Progress:
    """Makes what is missing.

    Args:
        plan: The fits.
        run: Takes the arguments of one command; used where there is no engine.
        since: Failures before this time (seconds since the epoch) are tried again.
        engine: What runs the workers; None is this process.
        say: Takes lines for a person.
        strict: Let the first error of a fit through, where there is no engine.

    Returns:
        How far it is.
    """
    jobs = 1 if engine is None else engine.jobs
    say(plan.progress(since=since, jobs=jobs).line(plan.title))
    for line in plan.made_before():
        say(f"[{plan.title}] {line}: it {AGAIN}")
    if engine is None:
        work(plan, run, since=since, say=say, strict=strict)
    else:
        _run_workers(plan, engine, since=since, say=say)
    return plan.progress(since=since)


def _run_workers(plan: Plan, engine: Engine, *, since: float, say: Callable[[str], None]) -> None:
    # Of this call alone: removing it ends its workers and nobody else's.
    path = plan.store.root / f"plan-{time.time_ns()}.json"
    write_atomically(path, json.dumps(plan.to_dict()))
    workers = None
    try:
        workers = engine.start(["work", str(path), "--since", repr(since)], path)
        shown = ""
        while True:
            ended = not workers.running()
            line = plan.progress(since=since, jobs=engine.jobs).line(plan.title)
            if line != shown:
                say(line)
                shown = line
            if ended:
                break
            time.sleep(POLL_SECONDS)
        for name in plan.tasks:
            if (error := plan.store.failure(name, since=since)) is not None:
                say(f"[{plan.title}] {name} failed: {error}")
        for complaint in workers.complaints():
            say(f"[{plan.title}] {complaint}")
    finally:
        if workers is not None:
            workers.stop()
        path.unlink(missing_ok=True)
