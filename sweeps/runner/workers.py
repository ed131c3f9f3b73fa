"""Fits in separate processes: several on this machine (`--jobs`), or those of a Dask cluster (`--dask`).

Each fit is the command that a user would type. Its process holds the fit's claim beside its parent, so that it is
made once even where the parent is killed.

Dask is for many machines: it is a library (no server with a key, as W&B's agents need), restarts what died elsewhere
and has starters for Slurm, PBS, SGE, LSF (`dask-jobqueue`), Kubernetes and SSH. Its workers need this project, the
same version, and the plan's folder, the working folder and the ledgers under the same paths, on a file system whose
locks reach across (see `sweeps.runner.queue`). Anyone who reaches a scheduler's port can run code on its workers: use a
private network or its TLS.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from privacy.files import write_atomically
from privacy.identity import LEDGERS
from sweeps.runner.fit import RunnerError
from sweeps.runner.queue import Order, Plan, Stopped, make

__all__ = ["Workers", "add_worker_arguments", "make_in_a_process", "shared_environment", "workers_of"]

PROGRAM = ("-m", "lightning_modules")
POLL_SECONDS = 0.5
SHARED = ("WANDB_MODE", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Workers:
    """Workers that make fits beside this process.

    Attributes:
        jobs: How many fits at a time.
        dask: Address of a scheduler, `tcp://host:8786`, or its JSON file; None for processes of this machine.
        program: Arguments of Python that name the command line.
    """

    jobs: int
    dask: str | None = None
    program: Sequence[str] = PROGRAM

    @contextmanager
    def executor(self, plan: Plan) -> Iterator[tuple[Executor, Callable[[Order], str | None]]]:
        """What fits are submitted to, and the function that makes one. Fits that run end where the block does.

        Raises:
            RunnerError: Dask is not installed, or the scheduler does not answer.
        """
        # Of this call only: removing it ends only its processes.
        marker = write_atomically(plan.store.root / f"plan-{time.time_ns()}", plan.title).resolve()
        environment = shared_environment()
        if self.dask is None:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        function = partial(
            make_in_a_process,
            marker=str(marker),
            workplace=os.getcwd(),
            environment=environment,
            program=tuple(self.program),
        )
        with ExitStack() as ends:
            ends.callback(marker.unlink, missing_ok=True)
            if self.dask is None:
                executor: Executor = ThreadPoolExecutor(self.jobs)
                ends.callback(executor.shutdown)
            else:
                client = ends.enter_context(closing(_client(self.dask)))
                executor = client.get_executor(pure=False)
                ends.callback(executor.shutdown, wait=False)
            # Removed first: processes end where it is gone.
            ends.callback(marker.unlink, missing_ok=True)
            ends.enter_context(_ended_by_sigterm())
            yield executor, function


def make_in_a_process(
    order: Order,
    *,
    marker: str,
    workplace: str,
    environment: Mapping[str, str | None],
    program: Sequence[str] = PROGRAM,
) -> str | None:
    """Makes one fit in a separate process, and ends it where its marker is removed; also on a machine of Dask's.

    Args:
        order: The fit.
        marker: File of the command that wants it.
        workplace: Working folder.
        environment: What the process takes over; None is taken out, whatever this machine has.
        program: Arguments of Python that name the command line.

    Returns:
        See `make`.
    """
    taken = {"OMP_NUM_THREADS": "1", **os.environ, **environment, "PYTHONPATH": _sources()}
    log = Path(workplace, order.root, f"{order.task.name}.log")

    def run(line: Sequence[str], claim: int) -> None:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *program, *line],
                cwd=workplace,
                env={name: value for name, value in taken.items() if value is not None},
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(claim,),
            )
            while process.poll() is None:
                if not os.path.isfile(marker):
                    process.terminate()
                    process.wait()
                    raise Stopped
                time.sleep(POLL_SECONDS)
        if process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise ChildProcessError(f"its process ended with status {process.returncode}, see {log}{last}")

    return make(replace(order, workplace=workplace), run)


def _sources() -> str:
    """`PYTHONPATH` by which a process finds this project also from a checkout that is not installed."""
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])


def shared_environment() -> dict[str, str | None]:
    """Environment that processes inherit from this one. Separate ledgers would forget charges."""
    ledgers = os.environ.get(LEDGERS)
    shared: dict[str, str | None] = {LEDGERS: None if ledgers is None else str(Path(ledgers).resolve())}
    return shared | {name: os.environ[name] for name in SHARED if name in os.environ}


def _client(scheduler: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise RunnerError(
            "--dask needs the package `distributed`, which the extra `dask` brings: "
            "pip install 'private-model-transcription[dask]'"
        ) from error
    where = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
    try:
        return Client(**where, timeout=30, set_as_default=False)
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"--dask must be the address of a running scheduler (tcp://host:8786) or its JSON file, got "
            f"{scheduler!r}: {error}"
        ) from error


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
    """Adds `--jobs` and `--dask` to a command.

    Args:
        add: `add_argument` of its parser.
    """
    add("--jobs", type=int, default=1, help="Fits at a time; 1 without --dask runs in this process.")
    add("--dask", default=None, metavar="ADDRESS", help="Scheduler of a Dask cluster whose workers run the fits.")


def workers_of(options: Any) -> Workers | None:
    """Workers by `--jobs` and `--dask`; None is this process.

    Raises:
        RunnerError: Fewer than one job.
    """
    if options.jobs < 1:
        raise RunnerError(f"--jobs must be 1 or more, got {options.jobs}")
    return None if options.jobs == 1 and options.dask is None else Workers(options.jobs, dask=options.dask)
