"""Makes fits: each once, parents first, resuming interrupted ones; here, in several processes, or on a cluster.

Each fit can be made by the same command with `--fit NAME`. `--jobs N` runs that command for N fits at a time, with the
threads of `concurrent.futures`; a process that is killed is started again, and resumes its fit. `--slurm FILE` writes a
script that submits one job per fit to SLURM, each after its parents, whose jobs run that command.

While a fit is made, a lock on a file marks it as taken, which the operating system releases when the process ends,
however it ends. A shared folder of several machines must forward `flock` to the server, as NFSv4, CephFS and GPFS do
(Lustre if mounted with `flock`); otherwise two commands could make the same fit.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from gc import collect
from pathlib import Path
from typing import Any

from privacy.checks import check_count
from privacy.journal import write_atomically
from privacy.ledger_place import benchmark_ledgers
from sweeps.runner.fit import Fit, RunnerError

CLAIMS = "claims"
"""Folder of the locks, next to the folders of the fits."""
LAST = "checkpoints/last.ckpt"
STALE = ("done.json", "result.json", "public/guarantee.json", "public/guarantee.md", LAST)
MAKING = "TRANSCRIPTION_FIT"
"""Environment variable: name of the fit being made, for the processes that Lightning starts for it."""
PROGRAM = ("-m", "lightning_modules")
TRIES = 3
"""Times that a fit is begun or resumed if its process is killed."""

Run = Callable[[Sequence[str]], Any]
"""Runs a command, given its arguments."""
Say = Callable[[str], None]
"""Prints a line for the user."""


class Store:
    """Folders of fits, with their state: finished, failed, being made, or resumable."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, name: str) -> Path:
        return self.root / name

    def done(self, name: str) -> dict[str, Any] | None:
        """Returns the notes of a finished fit, or None."""
        return _read(self.folder(name) / "done.json")

    @contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Holds the fit until the block ends; False if another process holds it, unless this is to `wait` for it."""
        path = self._beside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def _beside(self, name: str, ending: str = "") -> Path:
        # Not in the fit's own folder, which loggers expect to be empty at the start.
        return self.root / CLAIMS / f"{name}{ending}"

    def resumable(self, task: Task, made: Mapping[str, Any]) -> Path | None:
        """Returns the last checkpoint if it is of this configuration and these parents."""
        same = _read(self._beside(task.name, ".json")) == {"digest": task.digest, "parents": dict(made)}
        last = self.folder(task.name) / LAST
        return last if same and last.is_file() else None

    def begin(self, task: Task, made: Mapping[str, Any]) -> None:
        """Notes the configuration and parents of a fit, and removes what an earlier one left that cannot be resumed."""
        note, folder = self._beside(task.name, ".json"), self.folder(task.name)
        if self.resumable(task, made) is None:
            for name in STALE:
                (folder / name).unlink(missing_ok=True)
        write_atomically(note, json.dumps({"digest": task.digest, "parents": dict(made)}))
        (folder / "failed.json").unlink(missing_ok=True)

    def finish(self, name: str, **note: Any) -> None:
        """Marks the fit as done, atomically."""
        write_atomically(self.folder(name) / "done.json", json.dumps({"time": time.time(), **note}))

    def forget(self, name: str) -> None:
        """Has a fit made again, from its beginning."""
        for path in (self.folder(name) / "done.json", self._beside(name, ".json")):
            path.unlink(missing_ok=True)

    def fail(self, name: str, error: BaseException | str) -> str:
        """Notes why the fit failed and returns the reason in one line."""
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        write_atomically(self.folder(name) / "failed.json", json.dumps({"error": text, "traceback": trace}, indent=2))
        return text

    def record(self, name: str) -> dict[str, Any]:
        """Returns what the fit has measured, or nothing."""
        return _read(self.folder(name) / "result.json") or {}

    def failure(self, name: str) -> str:
        """Returns why the fit failed when it was last begun, or ""."""
        return str((_read(self.folder(name) / "failed.json") or {}).get("error", ""))


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


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
    """

    name: str
    fit: Fit
    digest: str
    parents: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    needs_record: bool = False


class Plan:
    """Fits to make, each once and after its parents.

    Args:
        tasks: The fits, parents before children; duplicates by name are left out.
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
        """Returns the notes of a fit if it was made from this configuration and its current parents, else None."""
        task, note = self.tasks[name], self.store.done(name)
        if note is None or note.get("digest") != task.digest:
            return None
        made = self.made_of(task)
        return note if note.get("parents") == made and None not in made.values() else None

    def made_of(self, task: Task) -> dict[str, Any]:
        """Identify the current result of each parent, by placeholder."""
        return {alias: (self.current(name) or {}).get("made") for alias, name in task.parents.items()}

    def left(self) -> list[str]:
        """Names of the fits that are still to be made, in order."""
        return [name for name in self.tasks if self.current(name) is None]

    def command(self, name: str) -> list[str]:
        """Command-line arguments of a fit; they resume it if it was interrupted."""
        task, store = self.tasks[name], self.store
        places = {alias: str(store.folder(parent)) for alias, parent in task.parents.items()}
        return task.fit.command(store.folder(name), places, resume=store.resumable(task, self.made_of(task)))

    def made_before(self) -> list[str]:
        """List fits that were made from another configuration and would be made, and charged, again."""
        changed = [name for name in self.left() if self.store.done(name) is not None]
        return [f"{name}: its configuration or a parent has changed since it was made" for name in changed]

    def slurm_script(self, command: Sequence[str]) -> str:
        """Script that submits the fits left to SLURM with the options it is given, each after its parents."""
        lines = ["#!/bin/bash", "# bash FILE --partition=gpu --gres=gpu:1 --time=4:00:00", "set -eu"]
        jobs = {name: f"job{number}" for number, name in enumerate(self.left())}
        for name, job in jobs.items():
            after = "".join(f":${jobs[parent]}" for parent in self.tasks[name].parents.values() if parent in jobs)
            options = f"--dependency=afterok{after} --kill-on-invalid-dep=yes " if after else ""
            line = shlex.join([sys.executable, *PROGRAM, *command, "--fit", name])
            options += f"--job-name={name} --output={shlex.quote(f'{self.store.root}/{name}.log')}"
            lines.append(f'{job}=$(sbatch --parsable --requeue {options} "$@" --wrap {shlex.quote(line)})')
        return "\n".join([*lines, ""])


def lacking(failure: str) -> str:
    """A line on the files for want of which a fit, or its parent, was not made; "" if it failed for another reason."""
    found = re.search(r"\S+: \d+ file\(s\) missing in [^:\n]+", failure)  # of `datamodules.files.missing_data`
    return f"{found[0]}; see docs/data.md" if found else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `run_plan` takes."""
    parser.add_argument("--jobs", type=int, default=1, help="Fits at a time, in as many processes.")
    parser.add_argument("--fit", metavar="NAME", help="Make this fit alone, whose parents are made.")
    told = "Make nothing; write a script that submits a job per fit to SLURM. Afterwards run the command without it."
    parser.add_argument("--slurm", type=Path, metavar="FILE", help=told)


def run_plan(
    plan: Plan,
    run: Run,
    *,
    jobs: int = 1,
    fit: str | None = None,
    slurm: Path | None = None,
    command: Sequence[str] = (),
    say: Say = print,
    after: Callable[[Mapping[str, str]], None] = lambda failed: None,
) -> dict[str, str]:
    """Makes the missing fits, always the first one that can be made, and returns why fits failed, by name.

    Args:
        plan: The fits.
        run: Runs a command, given its arguments.
        jobs: Number of fits at a time; more than one are made in processes of their own.
        fit: Name of the only fit to make.
        slurm: File of a script for SLURM to write instead.
        command: Arguments with which other processes make this plan.
        say: Prints a line for the user.
        after: Called after each fit with the failures so far.

    Raises:
        RunnerError: There is no such `fit`.
        ValueError: `jobs` is below 1.
        KeyboardInterrupt: The user interrupts the command.
        SIGTERMException: The process is terminated.
    """
    check_count("--jobs", jobs, minimum=1)
    if fit is not None and fit not in plan.tasks:
        raise RunnerError(f"--fit must be one of {sorted(plan.tasks)}, got {fit!r}")
    if int(os.environ.get("LOCAL_RANK", "0")) > 0 and os.environ.get(MAKING) in plan.tasks:
        # Lightning starts the same command for a fit on several devices; the first process makes the plan.
        run(plan.command(os.environ[MAKING]))
        return {}
    if fit is None:
        for line in plan.made_before():
            say(f"[{plan.title}] {line}: it is made again, and its queries to private data are charged again")
    if slurm is not None and fit is None:  # a job is given the whole command, and the fit
        plan.store.root.mkdir(parents=True, exist_ok=True)  # where SLURM writes what jobs say
        say(f"[{plan.title}] bash {write_atomically(slurm, plan.slurm_script(command))}")
        return {}
    # Ledgers of public benchmarks; of private data, the data lead to theirs.
    with benchmark_ledgers(plan.store.root / "ledgers"):
        if fit is not None:
            return {fit: failure} if (failure := _make(plan, fit, run, say)) else {}
        from lightning_modules.networks.feature_cache import feature_memory

        with feature_memory(), ThreadPoolExecutor(jobs) as pool:

            def begin(name: str) -> Future[str]:
                if jobs > 1:
                    return pool.submit(_make_elsewhere, plan, name, command=command, say=say)
                return _ended(_make(plan, name, run, say))

            return _make_all(plan, begin, jobs=jobs, say=say, after=after)


def _ended(failure: str) -> Future[str]:
    future: Future[str] = Future()
    future.set_result(failure)
    return future


def _make_all(
    plan: Plan, begin: Callable[[str], Future[str]], *, jobs: int, say: Say, after: Callable[[Mapping[str, str]], None]
) -> dict[str, str]:
    failed: dict[str, str] = {}
    running: dict[Future[str], str] = {}
    left = plan.left()

    def progress() -> None:
        remaining = len(left) + len(running)
        without = len([*filter(lacking, failed.values())])
        counts = {"failed": len(failed) - without, "without data": without}
        others = "".join(f", {count} {what}" for what, count in counts.items() if count)
        say(f"[{plan.title}] {len(plan.tasks) - remaining - len(failed)} done{others}, {remaining} left")

    progress()
    while left or running:
        for name in list(left):
            parents = set(plan.tasks[name].parents.values())
            if broken := sorted(parents & failed.keys()):
                reason = f"its parent {broken[0]} failed: {failed[broken[0]]}"
                running[_ended(plan.store.fail(name, reason))] = name
            elif len(running) < jobs and not parents & {*left, *running.values()}:
                running[begin(name)] = name
            else:
                continue
            left.remove(name)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name = running.pop(future)
            if failure := future.result():
                said = lacking(failure) or f"{name} failed: {failure}"
                if said not in map(lacking, failed.values()):  # one line for each data set
                    say(f"[{plan.title}] {said}")
                failed[name] = failure
        progress()
        after(failed)
    return failed


def _make_elsewhere(plan: Plan, name: str, *, command: Sequence[str], say: Say) -> str:
    """Makes one fit in a process, which is started again if it is killed; returns why it failed, or ""."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # one thread each: see docs/speed.md
    file = plan.store.root / f"{name}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        with file.open("ab") as log:
            line = [sys.executable, *PROGRAM, *command, "--fit", name]
            status = subprocess.run(line, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
        if status != -signal.SIGKILL:
            break
        say(f"[{plan.title}] the process of {name} was killed: it is resumed")
    if plan.current(name) is not None:
        return ""
    return plan.store.failure(name) or f"its process ended with status {status}, see {file}"


def _make(plan: Plan, name: str, run: Run, say: Say) -> str:
    """Makes one fit in this process, which only logs warnings; returns why it failed, or ""."""
    store, task = plan.store, plan.tasks[name]
    made = plan.made_of(task)
    with store.claim(name) as claimed:
        if not claimed:
            return "another command is making it: run this one again later"
        if plan.current(name) is not None:
            return ""
        if None in made.values():
            return "a parent is not made"
        store.begin(task, made)
        label = f" ({task.label})" if task.label else ""
        say(f"[{plan.title}] {task.fit.name}{label}: {store.folder(name)}")
        handler = signal.getsignal(signal.SIGINT)
        os.environ[MAKING] = name
        logging.disable(logging.INFO)
        try:
            run(plan.command(name))
        except SystemExit as error:
            # Lightning turns an interruption into an exit and ignores further ones.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            if type(error) is not SystemExit:  # Lightning's SIGTERMException
                raise  # the process must end; the next one resumes the fit
            return store.fail(name, f"the command ended with status {error.code}; its message is above")
        except Exception as error:
            return store.fail(name, error)
        finally:
            logging.disable(logging.NOTSET)
            os.environ.pop(MAKING, None)
            if (wandb := sys.modules.get("wandb")) and wandb.run:
                wandb.finish()  # the next fit would continue its run, and clear its folder
            collect()  # reference cycles keep fits alive, and Python collects by number, not size: six held 9 GB
            # A background process ignores SIGINT from the start: then there is nothing to restore.
            if handler not in (None, signal.SIG_IGN) and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                signal.signal(signal.SIGINT, handler)
        measured = store.record(name)
        if task.needs_record and not measured:
            return store.fail(name, f"the fit ended without writing {store.folder(name)}/result.json")
        store.finish(name, digest=task.digest, parents=made, made=uuid.uuid4().hex)
        if "accuracy" in measured:
            say(f"[{plan.title}] {100 * measured['accuracy']:.2f} % of the test split")
        return ""
