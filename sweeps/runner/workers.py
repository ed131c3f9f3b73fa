"""Fits in separate processes of this machine, several at a time (`--jobs`).

Each fit is the command that a user would type. Its process holds the fit's claim beside its parent, so that it is
made once even where the parent is killed. Several machines share a plan by each giving the same command in the same
folder, on a file system whose locks reach across (see `sweeps.runner.queue`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from privacy.files import write_atomically
from sweeps.runner.fit import RunnerError
from sweeps.runner.queue import Plan, Stopped, make

__all__ = ["Workers", "add_worker_arguments", "workers_of"]

PROGRAM = ("-m", "lightning_modules")
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Workers:
    """Processes that make fits beside this one.

    Attributes:
        jobs: How many fits at a time.
        program: Arguments of Python that name the command line.
    """

    jobs: int
    program: Sequence[str] = PROGRAM

    @contextmanager
    def executor(self, plan: Plan) -> Iterator[tuple[Executor, Callable[[Plan, str], str | None]]]:
        """What fits are submitted to, and the function that makes one. Fits that run end where the block does."""
        # Of this call only: removing it ends only its processes.
        marker = write_atomically(plan.store.root / f"plan-{time.time_ns()}", plan.title).resolve()
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        with ThreadPoolExecutor(self.jobs) as executor:
            try:
                with _ended_by_sigterm():
                    yield executor, partial(_make, marker=marker, threads=threads, program=self.program)
            finally:
                marker.unlink(missing_ok=True)  # processes end where it is gone


def _make(plan: Plan, name: str, *, marker: Path, threads: str, program: Sequence[str]) -> str | None:
    """Makes one fit in a separate process, see `make`; ends it where its marker is removed."""
    # By which a process finds this project also from a checkout that is not installed.
    sources = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": os.pathsep.join(sources)}
    log = plan.store.root / f"{name}.log"

    def run(line: Sequence[str], claim: int) -> None:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *program, *line],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(claim,),
            )
            while process.poll() is None:
                if not marker.is_file():
                    process.terminate()
                    process.wait()
                    raise Stopped
                time.sleep(POLL_SECONDS)
        if process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise ChildProcessError(f"its process ended with status {process.returncode}, see {log}{last}")

    return make(plan, name, run)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end this process as an exception does, so that its fits end with it.

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


def add_worker_arguments(add: Callable[..., Any]) -> None:
    """Adds `--jobs` to a command.

    Args:
        add: `add_argument` of its parser.
    """
    add("--jobs", type=int, default=1, help="Fits at a time; 1 runs in this process.")


def workers_of(options: Any) -> Workers | None:
    """Workers by `--jobs`; None is this process.

    Raises:
        RunnerError: Fewer than one job.
    """
    if options.jobs < 1:
        raise RunnerError(f"--jobs must be 1 or more, got {options.jobs}")
    return None if options.jobs == 1 else Workers(options.jobs)
