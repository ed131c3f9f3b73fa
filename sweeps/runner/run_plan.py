"""Runs what is missing of a plan, in this process or by an engine's workers, and says what that will be."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_modules.networks.memory import feature_memory
from privacy.files import write_atomically
from sweeps.runner.engines import Engine
from sweeps.runner.plan import Plan, Progress
from sweeps.runner.work import pause, work

__all__ = ["run_plan"]

AGAIN = "is made again, and whatever it asks of private data is charged again"


def run_plan(
    plan: Plan,
    run: Callable[[list[str]], Any],
    *,
    since: float,
    until: float = math.inf,
    engine: Engine | None = None,
    say: Callable[[str], None] = print,
    after: Callable[[], None] = lambda: None,
    strict: bool = False,
) -> Progress:
    """Makes what is missing.

    Args:
        plan: The fits.
        run: Takes the arguments of one command; used where there is no engine.
        since: Failures before this time (seconds since the epoch) are tried again.
        until: No fit is begun that its estimate says would end after this time; those that run are waited for.
        engine: What runs the workers; None is this process.
        say: Takes lines for a person.
        after: Called when fits have ended, made or failed.
        strict: Let the first error of a fit through, where there is no engine.

    Returns:
        How far it is.
    """
    jobs = 1 if engine is None else engine.jobs
    say(plan.progress(since=since, jobs=jobs).line(plan.title))
    for line in plan.made_before():
        say(f"[{plan.title}] {line}: it {AGAIN}")
    if engine is None:
        with feature_memory():  # of workers each would hold its own
            work(plan, run, since=since, until=until, say=say, after=after, strict=strict)
    else:
        with _ended_by_sigterm():
            _run_workers(plan, engine, since=since, until=until, say=say, after=after)
    return plan.progress(since=since)


def _run_workers(
    plan: Plan,
    engine: Engine,
    *,
    since: float,
    until: float,
    say: Callable[[str], None],
    after: Callable[[], None],
) -> None:
    # Of this call alone: removing it ends its workers and nobody else's.
    path = plan.store.root / f"plan-{time.time_ns()}.json"
    write_atomically(path, json.dumps(plan.to_dict()))
    workers = None
    try:
        workers = engine.start(["work", str(path), "--since", repr(since), "--until", repr(until)], path)
        shown, ended_fits = "", plan.progress(since=since).ended
        while True:
            begun = time.monotonic()
            ended = not workers.running()
            progress = plan.progress(since=since, jobs=engine.jobs)
            if (line := progress.line(plan.title)) != shown:
                say(line)
                shown = line
            if progress.ended != ended_fits:
                ended_fits = progress.ended
                after()
            if ended:
                break
            pause(time.monotonic() - begun)
        for name in plan.tasks:
            if (error := plan.store.failure(name, since=since)) is not None:
                say(f"[{plan.title}] {name} failed: {error}")
        for complaint in workers.complaints():
            say(f"[{plan.title}] {complaint}")
    finally:
        if workers is not None:
            workers.stop()
        path.unlink(missing_ok=True)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end this process as an exception does, so that its workers end with it.

    Where fits run in this process, Lightning follows SIGTERM itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
