"""Makes fits in one or several processes: each once, parents first, resuming interrupted ones.

Pipelines and tables keep their fits in a `Store`, which several processes may share: `--jobs N` starts N - 1 more with
the same command.

**On one machine** a claim is an `flock`, which the kernel releases when the last process that holds it ends, however it
ends. **On a network file system** several machines can share a folder if `flock` is forwarded to the server: NFSv4
(Linux turns it into a server lock, unless mounted with `local_lock=flock` or `all`), CephFS, GPFS, and Lustre mounted
with `flock`. A dead machine's locks are released when the server's lease expires (90 s by default for NFS). NFSv3
without `lockd` and Lustre with `localflock` only lock within a machine: two machines could then make the same fit.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from gc import collect
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_modules.cli.wandb_runs import end_wandb_run
from lightning_modules.networks.memory import feature_memory
from privacy.journal import write_atomically
from privacy.ledger_place import benchmark_ledgers
from sweeps.runner.fit import Fit, RunnerError

CLAIMS = "claims"
"""Folder of the claims, next to the folders of the fits."""
CHECKPOINTS = ("checkpoints/last.ckpt", "*/*/checkpoints/last.ckpt")
STALE = ("done.json", "result.json", "public/guarantee.json", "public/guarantee.md")
MAKING = "TRANSCRIPTION_FIT"
"""Environment variable: name of the fit being made, for the processes that Lightning starts for it."""
BEGUN = "TRANSCRIPTION_BEGUN"
"""Environment variable: start time of the command that this process helps."""
PROGRAM = ("-m", "lightning_modules")
POLL_SECONDS = 0.5

Run = Callable[[Sequence[str]], Any]
"""Runs a command, given its arguments."""


class Store:
    """Folders of fits, with their state: finished, failed, being made, or resumable.

    A claim is a lock that the operating system releases when its holder dies, so it is never stale.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, name: str) -> Path:
        return self.root / name

    def done(self, name: str) -> dict[str, Any] | None:
        """Return the notes of a finished fit, or None."""
        return _read(self.folder(name) / "done.json")

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Hold the fit until the block ends; False if another process holds it."""
        path = self._beside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _beside(self, name: str, ending: str = "") -> Path:
        # Not in the fit's own folder, which loggers expect to be empty at the start.
        return self.root / CLAIMS / f"{name}{ending}"

    def resumable(self, task: Task, made: Mapping[str, Any]) -> Path | None:
        """Return the last checkpoint (also in a W&B run's folder) if it is of this configuration and these parents."""
        if _read(self._beside(task.name, ".json")) != {"digest": task.digest, "parents": dict(made)}:
            return None
        found = [path for pattern in CHECKPOINTS for path in self.folder(task.name).glob(pattern) if path.is_file()]
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)

    def begin(self, task: Task, made: Mapping[str, Any]) -> None:
        """Note the configuration and parents of a fit that begins, so that its checkpoint can be identified."""
        note = {"digest": task.digest, "parents": dict(made)}
        write_atomically(self._beside(task.name, ".json"), json.dumps(note))

    def clear(self, name: str) -> None:
        """Remove files that could be mistaken for another configuration's."""
        for pattern in (*STALE, *CHECKPOINTS):
            for path in self.folder(name).glob(pattern):
                path.unlink(missing_ok=True)
        self._beside(name, ".json").unlink(missing_ok=True)

    def finish(self, name: str, **note: Any) -> None:
        """Mark the fit as done, atomically."""
        write_atomically(self.folder(name) / "done.json", json.dumps({"time": time.time(), **note}))
        (self.folder(name) / "failed.json").unlink(missing_ok=True)

    def fail(self, name: str, error: BaseException | str) -> str:
        """Note why the fit failed and return the reason in one line."""
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        note = {"time": time.time(), "error": text, "traceback": trace}
        write_atomically(self.folder(name) / "failed.json", json.dumps(note, indent=2))
        return text

    def failure(self, name: str, since: float) -> str | None:
        """Return why the fit failed in any process after a time (seconds since the epoch), or None."""
        note = _read(self.folder(name) / "failed.json") or {"time": -math.inf}
        return str(note["error"]) if note["time"] >= since else None

    def notes(self) -> list[dict[str, Any]]:
        """Return the notes of all finished fits, each with its folder's name as `folder`."""
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
    """A fit to make.

    Attributes:
        name: Name of its folder in the store.
        fit: The fit.
        digest: Hash of everything that determines its outcome.
        parents: Name of the task behind each placeholder in the fit's settings.
        label: A description that tells it from other fits.
        needs_record: Whether it counts as failed if it leaves no `result.json`.
        note: Values stored with the finished fit.
    """

    name: str
    fit: Fit
    digest: str
    parents: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    needs_record: bool = False
    note: Mapping[str, Any] = field(default_factory=dict)


class Plan:
    """Fits to make, each once and after its parents.

    Args:
        tasks: The fits; duplicates by name are left out.
        store: Their folders.
        title: A title for messages.
    """

    def __init__(self, tasks: Iterable[Task], store: Store, *, title: str = "") -> None:
        self.tasks: dict[str, Task] = {}
        self.store = store
        self.title = title
        for task in tasks:
            self.tasks.setdefault(task.name, task)

    def current(self, name: str) -> dict[str, Any] | None:
        """Return the notes of a fit if it was made from this configuration and its current parents, else None."""
        task, note = self.tasks[name], self.store.done(name)
        if note is None or note.get("digest") != task.digest:
            return None
        made = self.made_of(task)
        return note if note.get("parents") == made and None not in made.values() else None

    def made_of(self, task: Task) -> dict[str, Any]:
        """Identify the current result of each parent, by placeholder."""
        return {alias: (self.current(name) or {}).get("made") for alias, name in task.parents.items()}

    def command(self, name: str) -> list[str]:
        """Command-line arguments of a fit; they resume it if it was interrupted."""
        task, store = self.tasks[name], self.store
        places = {alias: str(store.folder(parent)) for alias, parent in task.parents.items()}
        return task.fit.command(store.folder(name), places, resume=store.resumable(task, self.made_of(task)))

    def made_before(self) -> list[str]:
        """List fits that were made from another configuration and would be made, and charged, again."""
        lines, others = [], [note for note in self.store.notes() if note["folder"] not in self.tasks]
        for name, task in self.tasks.items():
            if self.current(name) is not None:
                continue
            if self.store.done(name) is not None:
                lines.append(f"{name}: its configuration or a parent has changed since it was made")
                continue
            alike = [note["folder"] for note in others if task.note and task.note.items() <= note.items()]
            if alike:
                lines.append(f"{task.fit.name} ({task.label}): made before, from another configuration, as {alike[0]}")
        return lines


@dataclass(frozen=True)
class Progress:
    """Progress of a plan.

    Attributes:
        done: Number of finished fits.
        failed: Reason why a fit or its parent failed, by name.
        left: Number of fits still to make.
    """

    done: int
    failed: Mapping[str, str]
    left: int

    def line(self, title: str) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"[{title}] {self.done} done{failed}, {self.left} left"


def run_plan(
    plan: Plan,
    run: Run,
    *,
    jobs: int = 1,
    command: Sequence[str] = (),
    say: Callable[[str], None] = print,
    after: Callable[[Mapping[str, str]], None] = lambda failed: None,
    strict: bool = False,
) -> Progress:
    """Make the missing fits, always the first one that can be made, and wait for those that other commands are making.

    Args:
        plan: The fits.
        run: Runs a command, given its arguments.
        jobs: Number of fits at a time, all but one of them in other processes.
        command: Arguments with which the other processes make this plan.
        say: Prints a line for the user.
        after: Called after each fit with the failures so far.
        strict: Let the first error of a fit through.

    Raises:
        RunnerError: `jobs` is below 1.
        KeyboardInterrupt: The user interrupts the command.
        SIGTERMException: The process is terminated.
    """
    if jobs < 1:
        raise RunnerError(f"--jobs must be 1 or more, got {jobs}")
    if int(os.environ.get("LOCAL_RANK", "0")) > 0 and os.environ.get(MAKING) in plan.tasks:
        # Lightning starts the same command for a fit on several devices; the first process has the claim.
        run(plan.command(os.environ[MAKING]))
        return Progress(0, {}, len(plan.tasks))
    for line in plan.made_before():
        say(f"[{plan.title}] {line}: it is made again, and its queries to private data are charged again")
    course = _Course(plan, run, say=say, after=after, strict=strict)
    with benchmark_ledgers(plan.store.root / "ledgers"):  # of private data, the data lead to theirs
        if jobs == 1 and BEGUN not in os.environ:
            with feature_memory():  # with several processes each would hold its own
                return course.run()
        with _helpers(plan, command, jobs, course.begun):
            return course.run()


@contextmanager
def _helpers(plan: Plan, command: Sequence[str], jobs: int, begun: float) -> Iterator[None]:
    """Run the same command in other processes of this machine, which are terminated if the block fails."""

    def ended(*_: Any) -> None:
        raise SIGTERMException

    # Lets processes find this project even if it is not installed.
    sources = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    most = torch.get_num_threads()
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(sources)}
    plan.store.root.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGTERM, ended) if jobs > 1 else None
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, jobs):
            with (plan.store.root / f"helper-{number}.log").open("wb") as log:
                line = [sys.executable, *PROGRAM, *command, "--jobs", "1"]
                own = {**environment, BEGUN: str(begun)}
                helpers.append(subprocess.Popen(line, env=own, stdout=log, stderr=subprocess.STDOUT))
        if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # see docs/speed.md
        yield
    except BaseException:
        for helper in helpers:
            helper.terminate()
        raise
    finally:
        torch.set_num_threads(most)
        for helper in helpers:
            helper.wait()
        if jobs > 1:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _Course:
    """One run of a plan."""

    def __init__(self, plan: Plan, run: Run, *, say: Callable[[str], None], after: Any, strict: bool) -> None:
        self.plan, self.command = plan, run
        self.say, self.after, self.strict = say, after, strict
        self.begun = float(os.environ.get(BEGUN) or time.time())
        self.parent = os.getppid()
        self.left = [name for name in plan.tasks if plan.current(name) is None]
        self.failed: dict[str, str] = {}

    def run(self) -> Progress:
        self.say(self.progress().line(self.plan.title))
        while self.left:
            if BEGUN in os.environ and os.getppid() != self.parent:
                sys.exit("error: the command that this process helps was killed")
            try:
                if not self._go_on():
                    time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                self.say(f"[{self.plan.title}] interrupted: run the same command to continue")
                raise
        return self.progress()

    def progress(self) -> Progress:
        done = len(self.plan.tasks) - len(self.left) - len(self.failed)
        return Progress(done=done, failed=self.failed, left=len(self.left))

    def _go_on(self) -> bool:
        """Make the first fit that can be made; return whether there is no need to wait for another command."""
        plan = self.plan
        for name in list(self.left):
            parents = list(plan.tasks[name].parents.values())
            if plan.current(name) is not None:
                self._end(name)
            elif broken := [parent for parent in parents if parent in self.failed]:
                self._end(name, plan.store.fail(name, f"its parent {broken[0]} failed"))
            elif (
                all(plan.current(parent) is not None for parent in parents)
                and (failure := self._make(name)) is not None
            ):
                self._end(name, failure)
                return True
        return not self.left

    def _make(self, name: str) -> str | None:
        """Make one fit; return why it failed, "" if it is made, or None if another process is making it."""
        plan, store, task = self.plan, self.plan.store, self.plan.tasks[name]
        made = plan.made_of(task)
        mark = {"digest": task.digest, "parents": made}
        with store.claim(name) as claimed:
            if not claimed:
                return None
            if mark.items() <= (store.done(name) or {}).items():
                return ""
            if (failure := store.failure(name, self.begun)) is not None:
                return failure
            if store.resumable(task, made) is None:
                store.clear(name)
            store.begin(task, made)
            # W&B writes elsewhere if its folder does not exist.
            store.folder(name).mkdir(parents=True, exist_ok=True)
            label = f" ({task.label})" if task.label else ""
            self.say(f"[{plan.title}] {task.fit.name}{label}: {store.folder(name)}")
            try:
                self._run(name)
            except SystemExit as error:
                # Lightning turns an interruption into an exit and ignores further ones.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise KeyboardInterrupt from error
                if self.strict or isinstance(error, SIGTERMException):
                    raise  # the process must end; the next one resumes the fit
                return store.fail(name, f"the command ended with status {error.code}; its message is above")
            except Exception as error:
                failure = store.fail(name, error)
                if self.strict:
                    raise
                return failure
            record = store.folder(name) / "result.json"
            measured = _read(record) or {}
            if task.needs_record and not measured:
                return store.fail(name, f"the fit ended without writing {record}")
            store.finish(name, **task.note, **mark, made=uuid.uuid4().hex)
            if "accuracy" in measured:
                self.say(f"[{plan.title}] {100 * measured['accuracy']:.2f} % of the test split")
            return ""

    def _run(self, name: str) -> None:
        """Make one fit, which only logs warnings."""
        handler = signal.getsignal(signal.SIGINT)
        os.environ[MAKING] = name
        logging.disable(logging.INFO)
        try:
            self.command(self.plan.command(name))
        finally:
            logging.disable(logging.NOTSET)
            os.environ.pop(MAKING, None)
            end_wandb_run()
            collect()  # reference cycles keep fits alive, and Python collects by number, not size: six held 9 GB
            # A background process ignores SIGINT from the start: then there is nothing to restore.
            if handler not in (None, signal.SIG_IGN) and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                signal.signal(signal.SIGINT, handler)

    def _end(self, name: str, failure: str = "") -> None:
        self.left.remove(name)
        if failure:
            self.failed[name] = failure
            self.say(f"[{self.plan.title}] {name} failed: {failure}")
        self.say(self.progress().line(self.plan.title))
        self.after(self.failed)
