"""Makes fits: each once, parents first, going on where an interrupted one stopped, in this process or in several.

Pipelines, tables, sweeps and audits keep what they make in a `Store`. Several processes may share one.

**On one machine** a claim is `flock`, which the kernel takes back when the last process that holds it ends, however it
ends. **On a network file system** several machines can share a folder where it passes `flock` on to its server: NFSv4
(Linux turns it into a lock of the server, unless mounted with `local_lock=flock` or `all`), CephFS, GPFS, and Lustre
mounted with `flock`. A dead machine's locks are free when the server's lease runs out (90 s for NFS as it comes).
NFSv3 without `lockd` and Lustre with `localflock` lock each machine by itself: two machines would then make one fit.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from gc import collect
from pathlib import Path
from statistics import fmean
from typing import Any

from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_modules.networks.memory import feature_memory
from lightning_modules.runtime.wandb_runs import end_wandb_run
from privacy.files import write_atomically
from sweeps.runner.fit import Fit

__all__ = [
    "CLAIMS",
    "Plan",
    "Progress",
    "Stopped",
    "Store",
    "Task",
    "duration",
    "estimate",
    "make",
    "run_plan",
]

CLAIMS = "claims"
"""Folder of the claims, beside those of the fits."""
CHECKPOINTS = ("checkpoints/last.ckpt", "*/*/checkpoints/last.ckpt")
STALE = ("done.json", "result.json", "public/guarantee.json", "public/guarantee.md")
MAKING = "TRANSCRIPTION_FIT"
"""Environment variable: the fit that is being made, for the processes that Lightning starts to help with it."""
POLL_SECONDS = 0.5
AGAIN = "is made again, and whatever it asks of private data is charged again"

Run = Callable[[Sequence[str]], Any]
"""Takes the arguments of one command."""


class Store:
    """Folders of fits: which are finished, failed or being made, and where an interrupted one resumes.

    A fit is claimed by a lock that the operating system drops when its holder dies, so that a
    claim is never stale.

    Args:
        root: Parent of the folders.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, name: str) -> Path:
        """Folder of one fit."""
        return self.root / name

    def done(self, name: str) -> dict[str, Any] | None:
        """Its notes from when it finished, or None."""
        return _read(self.folder(name) / "done.json")

    @contextmanager
    def claim(self, name: str) -> Iterator[int | None]:
        """Takes the fit until the block ends: the lock's file, or None where another process holds it.

        A process that inherits the file holds the claim, too, for as long as it lives.
        """
        path = self._beside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            yield handle
        finally:
            os.close(handle)

    def _beside(self, name: str, ending: str = "") -> Path:
        # Not in the fit's own folder, which loggers expect to be empty when a fit begins.
        return self.root / CLAIMS / f"{name}{ending}"

    def resumable(self, task: Task, made: Mapping[str, Any]) -> Path | None:
        """The last checkpoint, also in the folder of a W&B run, where it is of this configuration and these parents."""
        if _read(self._beside(task.name, ".json")) != {"digest": task.digest, "parents": dict(made)}:
            return None
        found = [path for pattern in CHECKPOINTS for path in self.folder(task.name).glob(pattern) if path.is_file()]
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)

    def begin(self, task: Task, made: Mapping[str, Any]) -> None:
        """Notes what is begun, so that its checkpoint can be identified."""
        note = {"digest": task.digest, "parents": dict(made)}
        write_atomically(self._beside(task.name, ".json"), json.dumps(note))

    def clear(self, name: str) -> None:
        """Removes what must not be taken for the work of another configuration."""
        for pattern in (*STALE, *CHECKPOINTS):
            for path in self.folder(name).glob(pattern):
                path.unlink(missing_ok=True)
        self._beside(name, ".json").unlink(missing_ok=True)

    def finish(self, name: str, **note: Any) -> None:
        """Marks it as done, in one step."""
        write_atomically(self.folder(name) / "done.json", json.dumps({"time": time.time(), **note}))
        (self.folder(name) / "failed.json").unlink(missing_ok=True)

    def fail(self, name: str, error: BaseException | str) -> str:
        """Notes why it failed, and gives that in a line."""
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        note = {"time": time.time(), "error": text, "traceback": trace}
        write_atomically(self.folder(name) / "failed.json", json.dumps(note, indent=2))
        return text

    def notes(self) -> list[dict[str, Any]]:
        """Notes of all finished fits, each with its folder as `folder`."""
        paths = sorted(self.root.glob("*/done.json"))
        return [{**note, "folder": path.parent.name} for path in paths if (note := _read(path)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return note


@dataclass(frozen=True)
class Task:
    """One fit that is to be made.

    Attributes:
        name: Of its folder in the store.
        fit: What is run.
        digest: Of everything that decides its outcome.
        parents: Name of the task behind each placeholder in the fit's settings.
        label: What distinguishes it from the others, for people.
        seconds: Estimate of its wall time, or None.
        needs_record: Whether it has failed where it leaves no `result.json`.
        note: Kept with it when it is done; fits with equal notes, but for `labels` and `seed`, take about equally long.
    """

    name: str
    fit: Fit
    digest: str
    parents: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    seconds: float | None = None
    needs_record: bool = False
    note: Mapping[str, Any] = field(default_factory=dict)


class Stopped(Exception):
    """A fit was ended because it is no longer wanted; it resumes from its checkpoint the next time."""


class Plan:
    """Fits, parents before children, each once.

    Args:
        tasks: The fits; those of a name that is there already are left out.
        store: Their folders.
        title: Of all of them together, for people.

    Raises:
        ValueError: A parent comes after its child, or is missing.
    """

    def __init__(self, tasks: Iterable[Task], store: Store, *, title: str = "") -> None:
        self.tasks: dict[str, Task] = {}
        self.store = store
        self.title = title
        for task in tasks:
            if unknown := set(task.parents.values()) - set(self.tasks):
                raise ValueError(f"tasks: {task.name} has the parents {sorted(unknown)}, which do not come before it")
            self.tasks.setdefault(task.name, task)

    def current(self, name: str) -> dict[str, Any] | None:
        """What was noted of it, where it was made of this configuration and of its parents as they are; else None."""
        task, note = self.tasks[name], self.store.done(name)
        if note is None or note.get("digest") != task.digest:
            return None
        made = self.made_of(task)
        return note if note.get("parents") == made and None not in made.values() else None

    def made_of(self, task: Task) -> dict[str, Any]:
        """Identifies the current result of each parent, by placeholder."""
        return {alias: (self.current(name) or {}).get("made") for alias, name in task.parents.items()}

    def command(self, name: str) -> list[str]:
        """The command line of one of its fits, which resumes where an interrupted one stopped."""
        task, store = self.tasks[name], self.store
        places = {alias: str(store.folder(parent)) for alias, parent in task.parents.items()}
        return task.fit.command(store.folder(name), places, resume=store.resumable(task, self.made_of(task)))

    def made_before(self) -> list[str]:
        """Lines that name what was made before of another configuration, and would be made and charged again."""
        lines, notes = [], self.store.notes()
        for name, task in self.tasks.items():
            if self.current(name) is not None:
                continue
            if self.store.done(name) is not None:
                lines.append(f"{name}: its configuration or a parent has changed since it was made")
                continue
            alike = [
                note["folder"]
                for note in notes
                if task.note and note["folder"] not in self.tasks and task.note.items() <= note.items()
            ]
            if alike:
                lines.append(f"{task.fit.name} ({task.label}): made before, of another configuration, as {alike[0]}")
        return lines


@dataclass(frozen=True)
class Progress:
    """Progress of a plan.

    Attributes:
        done: Fits that are finished.
        failed: Why others failed, or their parents did, by name.
        running: Fits that are being made.
        left: Fits that have not begun.
        seconds_left: Estimate for what is running and left, None where nothing is known of some fit.
    """

    done: int
    failed: Mapping[str, str]
    running: int
    left: int
    seconds_left: float | None

    def line(self, title: str) -> str:
        """For a person."""
        to_go = "time to go unknown" if self.seconds_left is None else f"about {duration(self.seconds_left)} to go"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        words = f"[{title}] {self.done} done{failed}, {self.running} running, {self.left} left"
        return words + (f", {to_go}" if self.running or self.left else "")


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(task: Task, notes: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds that a fit will take: the mean of finished fits that share most labels; else the task's own estimate."""
    kind = {name: value for name, value in task.note.items() if name not in ("labels", "seed")}
    labels = task.note.get("labels", {})
    alike = [note for note in notes if note.get("seconds") and kind and kind.items() <= note.items()]
    if not alike:
        return task.seconds
    shared = [len(labels.items() & note.get("labels", {}).items()) for note in alike]
    return fmean(note["seconds"] for note, count in zip(alike, shared, strict=True) if count == max(shared))


def make(plan: Plan, name: str, run: Callable[[Sequence[str], int], Any], *, strict: bool = False) -> str | None:
    """Makes one fit, unless it is there by now.

    Args:
        plan: Of the fit.
        name: The fit's.
        run: Takes the arguments of one command, and the file that holds the claim.
        strict: Let errors through as well.

    Returns:
        Why it failed; empty where it is made; None where another process is making it, or it was stopped.

    Raises:
        KeyboardInterrupt: The user stops everything.
        SIGTERMException: The system does.
    """
    store, task = plan.store, plan.tasks[name]
    made = plan.made_of(task)
    mark = {"digest": task.digest, "parents": made}
    with store.claim(name) as claim:
        if claim is None:
            return None
        if mark.items() <= (store.done(name) or {}).items():
            return ""
        if store.resumable(task, made) is None:
            store.clear(name)
        store.begin(task, made)
        # W&B writes elsewhere where the folder that it is given does not exist.
        store.folder(name).mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        try:
            run(plan.command(name), claim)
        except Stopped:
            return None
        except KeyboardInterrupt:
            raise
        except SystemExit as error:
            # Lightning turns an interruption into an exit and ignores the ones that follow.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            if strict or isinstance(error, SIGTERMException):
                raise  # the process has to end, and the next one resumes the fit
            return store.fail(name, f"the command ended with status {error.code}; its message is above")
        except Exception as error:
            failure = store.fail(name, error)
            if strict:
                raise
            return failure
        record = store.folder(name) / "result.json"
        measured = _read(record) or {}
        if task.needs_record and not measured:
            return store.fail(name, f"the fit ended without writing {record}")
        seconds = measured.get("wall_seconds") or time.monotonic() - begun
        store.finish(name, **task.note, **mark, made=uuid.uuid4().hex, seconds=seconds)
        return ""


class _ThisProcess(Executor):
    """Makes a fit as soon as it is submitted, one after another."""

    def __init__(self, run: Run, *, strict: bool) -> None:
        self.run, self.strict = run, strict

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        plan, name = args
        os.environ[MAKING] = name
        try:
            future.set_result(make(plan, name, self._fit, strict=self.strict))
        finally:
            os.environ.pop(MAKING, None)
        return future

    def _fit(self, line: Sequence[str], claim: int) -> None:
        handler = signal.getsignal(signal.SIGINT)
        try:
            self.run(line)
        finally:
            end_wandb_run()
            collect()  # a fit is held by cycles, which Python looks for by number and not by weight: six held 9 GB
            # A background process ignores it from the start: nothing to restore then.
            if handler not in (None, signal.SIG_IGN) and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                signal.signal(signal.SIGINT, handler)


def run_plan(
    plan: Plan,
    run: Run,
    *,
    until: float = math.inf,
    workers: Any = None,
    say: Callable[[str], None] = print,
    after: Callable[[Mapping[str, str]], None] = lambda failed: None,
    strict: bool = False,
) -> Progress:
    """Makes what is missing, always the first of the plan that can be made; waits for what other commands are making.

    Args:
        plan: The fits.
        run: Takes the arguments of one command; used where there are no workers.
        until: No fit is begun that its estimate says would end after this time (seconds since the epoch); those that
            run are waited for. A fit without an estimate counts as 0 s.
        workers: `sweeps.runner.workers.Workers`, or None for this process.
        say: Takes lines for the user.
        after: Called with what has failed when fits have ended.
        strict: Let the first error of a fit through, where there are no workers.

    Returns:
        How far it is.
    """
    if int(os.environ.get("LOCAL_RANK", "0")) > 0 and os.environ.get(MAKING) in plan.tasks:
        # Started by Lightning, by the same command line, for a fit on several devices; the first process has the claim.
        run(plan.command(os.environ[MAKING]))
        return Progress(0, {}, 0, len(plan.tasks), None)
    for line in plan.made_before():
        say(f"[{plan.title}] {line}: it {AGAIN}")
    if workers is None:
        with feature_memory():  # of several processes each would hold its own
            return _Course(plan, until=until, jobs=1, say=say, after=after).run(_ThisProcess(run, strict=strict), make)
    with workers.executor(plan) as (executor, function):
        return _Course(plan, until=until, jobs=workers.jobs, say=say, after=after).run(executor, function)


class _Course:
    """One run of a plan."""

    def __init__(self, plan: Plan, *, until: float, jobs: int, say: Callable[[str], None], after: Any) -> None:
        self.plan, self.until, self.jobs, self.say, self.after = plan, until, jobs, say, after
        self.left = [name for name in plan.tasks if plan.current(name) is None]
        self.late: list[str] = []
        self.failed: dict[str, str] = {}
        self.running: dict[Future[Any], str] = {}

    def run(self, executor: Executor, function: Callable[..., Any]) -> Progress:
        self.say(self.progress().line(self.plan.title))
        while self.left or self.running:
            waits = self._submit(executor, function)
            if self.running:
                ended, _ = wait(self.running, timeout=POLL_SECONDS if waits else None, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._note(self.running.pop(future), future.result())
            elif waits:
                time.sleep(POLL_SECONDS)
        return self.progress()

    def progress(self) -> Progress:
        missing = [*self.left, *self.late, *self.running.values()]
        notes = self.plan.store.notes()
        seconds = [estimate(self.plan.tasks[name], notes) for name in missing]
        return Progress(
            done=len(self.plan.tasks) - len(missing) - len(self.failed),
            failed=self.failed,
            running=len(self.running),
            left=len(self.left) + len(self.late),
            seconds_left=None if None in seconds else sum(filter(None, seconds)) / self.jobs,
        )

    def _submit(self, executor: Executor, function: Callable[..., Any]) -> bool:
        """Begins what can be begun; whether anything waits for another command."""
        plan, elsewhere = self.plan, False
        notes = [] if self.until == math.inf else plan.store.notes()
        for name in list(self.left):
            parents = list(plan.tasks[name].parents.values())
            if plan.current(name) is not None:
                self._end(name)
            elif broken := [parent for parent in parents if parent in self.failed]:
                self._end(name, plan.store.fail(name, f"its parent {broken[0]} failed"))
            elif any(parent in self.late for parent in parents):
                self.left.remove(name)
                self.late.append(name)
            elif len(self.running) < self.jobs and all(plan.current(parent) is not None for parent in parents):
                task = plan.tasks[name]
                if self.until < math.inf and time.time() + (estimate(task, notes) or 0.0) > self.until:
                    self.left.remove(name)
                    self.late.append(name)
                    continue
                with plan.store.claim(name) as claim:
                    free = claim is not None
                if not free:
                    elsewhere = True
                    continue
                self.left.remove(name)
                label = f" ({task.label})" if task.label else ""
                self.say(f"[{plan.title}] {task.fit.name}{label}: {plan.store.folder(name)}")
                self.running[executor.submit(function, plan, name)] = name
                if self.jobs == 1:
                    break
        return elsewhere

    def _note(self, name: str, failure: str | None) -> None:
        """Outcome of a fit; None where another command has taken it meanwhile."""
        if failure is None:
            self.left.insert(0, name)
        else:
            self._end(name, failure)

    def _end(self, name: str, failure: str = "") -> None:
        if name in self.left:
            self.left.remove(name)
        if failure:
            self.failed[name] = failure
            self.say(f"[{self.plan.title}] {name} failed: {failure}")
        self.say(self.progress().line(self.plan.title))
        self.after(self.failed)
