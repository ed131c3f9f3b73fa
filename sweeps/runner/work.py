"""Makes the missing fits of a plan: each once, one process at a time, going on where an interrupted one stopped."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_modules.runtime.memory import let_go_of_fits
from lightning_modules.runtime.wandb_runs import end_wandb_run
from sweeps.runner.plan import Plan, Task, estimate

__all__ = ["make", "pause", "work", "worker"]

POLL_SECONDS = 0.5
LONGEST_PAUSE = 10.0
MAKING = "TRANSCRIPTION_FIT"
"""Environment variable: the fit that is being made, for the processes that Lightning starts to help with it."""


def make(plan: Plan, task: Task, run: Callable[[list[str]], Any], *, strict: bool = False) -> None:
    """Makes one fit, which the caller has claimed; whatever goes wrong in it is noted and ends nothing else.

    Args:
        plan: What it is part of.
        task: The fit.
        run: Takes the arguments of one command.
        strict: Let errors through as well.

    Raises:
        KeyboardInterrupt: Somebody wants everything to stop.
        SIGTERMException: The system does.
    """
    store, name = plan.store, task.name
    begun = time.monotonic()
    handler = signal.getsignal(signal.SIGINT)
    parents = plan.made_of(task)
    if plan.resumable(task) is None:
        store.clear(name)
    store.begin(name, digest=task.digest, parents=parents)
    # W&B writes elsewhere where the folder that it is given does not exist.
    store.folder(name).mkdir(parents=True, exist_ok=True)
    os.environ[MAKING] = name
    try:
        run(plan.command(task))
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        # Lightning turns an interruption into an exit and ignores the ones that follow.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        if isinstance(error, SIGTERMException):
            raise  # the process is to end, and the fit is gone on with by the next one
        store.fail(name, f"the command ended with status {error.code}; its message is above or in the worker's log")
        if strict:
            raise
    except Exception as error:
        store.fail(name, error)
        if strict:
            raise
    else:
        record = store.folder(name) / "result.json"
        if task.needs_record and not record.is_file():
            store.fail(name, f"the fit ended without writing {record}")
            return
        measured = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
        seconds = measured.get("wall_seconds") or time.monotonic() - begun
        made = {"digest": task.digest, "parents": parents, "made": uuid.uuid4().hex, "seconds": seconds}
        store.finish(name, **task.note, **made)
    finally:
        os.environ.pop(MAKING, None)
        end_wandb_run()
        let_go_of_fits()
        # A process in the background ignores it from the start: nothing is to be put back then.
        if handler not in (None, signal.SIG_IGN) and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, handler)


def work(
    plan: Plan,
    run: Callable[[list[str]], Any],
    *,
    since: float,
    until: float = math.inf,
    say: Callable[[str], None] = lambda text: None,
    after: Callable[[], None] = lambda: None,
    strict: bool = False,
) -> None:
    """Makes fits until none is left that this process could make, and waits for those that others are making.

    It always takes the first of the plan that can be made: where one had to wait for its parent, it is next.

    Args:
        plan: The fits.
        run: Takes the arguments of one command.
        since: Failures before this time are tried again.
        until: No fit is begun that its estimate says would end after this time (seconds since the epoch). A fit without
            an estimate counts as 0 s, and one that has a checkpoint as if it had none.
        say: Takes lines for a person.
        after: Called after each fit, made or failed.
        strict: Let the first error of a fit through, and end with it.
    """
    if _helps(plan):
        run(plan.command(plan.tasks[os.environ[MAKING]]))
        return
    store = plan.store
    while True:
        made_one = waiting = False
        late: set[str] = set()
        notes = [] if until == math.inf else store.notes()
        begun = time.monotonic()
        for name, task in plan.tasks.items():
            if plan.current(task) is not None or store.failure(name, since=since) is not None:
                continue
            parents = [plan.tasks[parent] for parent in task.parents.values()]
            broken = [parent for parent in parents if store.failure(parent.name, since=since) is not None]
            if broken:
                store.fail(name, f"its parent {broken[0].name} failed")
                continue
            if late.intersection(task.parents.values()):
                late.add(name)
                continue
            if any(plan.current(parent) is None for parent in parents):
                waiting = True
                continue
            with store.claim(name) as mine:
                # Between the look above and the claim another process may have finished it, or failed in it.
                if not mine or plan.state(task, since=since) in ("done", "failed"):
                    waiting |= not mine
                    continue
                if until < math.inf and time.time() + (estimate(task, notes)[0] or 0.0) > until:
                    late.add(name)
                    continue
                say(f"[{plan.title}] {task.fit.name}{f' ({task.label})' if task.label else ''}: {store.folder(name)}")
                make(plan, task, run, strict=strict)
                made_one = True
            if (error := store.failure(name, since=since)) is not None:
                say(f"[{plan.title}] {task.fit.name} failed: {error}")
            say(plan.progress(since=since).line(plan.title))
            after()
            break
        if not made_one:
            if not waiting:
                return
            pause(time.monotonic() - begun)


def pause(look_seconds: float) -> None:
    """Waits before the next look at a plan; at a large one that looks cost little beside the fits.

    Args:
        look_seconds: How long the last look took.
    """
    time.sleep(max(POLL_SECONDS, min(50 * look_seconds, LONGEST_PAUSE)))


def _helps(plan: Plan) -> bool:
    """Whether Lightning has started this process, by the same command line, for a fit on several devices."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0 and os.environ.get(MAKING) in plan.tasks


def worker(args: Sequence[str], *, run: Callable[[list[str]], Any]) -> None:
    """The command `work PLAN --since SECONDS`, which an engine starts as often as it is asked to.

    Args:
        args: Its arguments.
        run: Takes the arguments of one command.
    """
    parser = argparse.ArgumentParser(
        prog="LightningCLI work", description="Make what is missing of a plan. Started by --jobs and --dask."
    )
    parser.add_argument("plan", help="File that the command which started this one has written.")
    parser.add_argument("--since", type=float, required=True, help="Failures before this time are tried again.")
    parser.add_argument("--until", type=float, default=math.inf, help="No fit is begun that would end after this time.")
    options = parser.parse_args(list(args))
    plan = Plan.from_dict(json.loads(Path(options.plan).read_text(encoding="utf-8")))
    work(plan, run, since=options.since, until=options.until, say=lambda text: print(text, flush=True))
