"""What runs the workers of a plan: processes of this machine, or Dask on as many machines as it has.

The store is the one queue. A worker is the command `LightningCLI work PLAN`, which makes whatever it can claim, so that
an engine has only to start it, on any machine that sees the folder, and to start it again where it dies. Each fit is
made once whatever the engine does: if it starts a worker twice, the second finds the claims taken.

Dask is the engine of many machines because it is a library (no server with a key, as W&B's agents need), restarts
what died elsewhere, has starters for Slurm, PBS, SGE, LSF (`dask-jobqueue`), Kubernetes and SSH, and is plain Python:
two workers of it run in the tests. Its workers need this project installed, the same version, and the plan's folder,
the working folder and the ledgers under the same paths, on a file system whose locks reach across (see
`sweeps.runner.store`). Whoever reaches a scheduler's port runs code on its workers: use a private network or its TLS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from privacy.identity import LEDGERS
from sweeps.runner.worker_process import PROGRAM, run_worker, sources

__all__ = ["DaskWorkers", "Engine", "EngineError", "LocalProcesses", "add_engine_arguments", "engine_of"]

POLL_SECONDS = 0.5
SHARED = (LEDGERS, "WANDB_MODE", "OMP_NUM_THREADS")
"""Environment variables that workers on other machines take over. A ledger of their own would forget charges."""


class EngineError(ValueError):
    """An engine that cannot run here."""


class Workers(Protocol):
    """Workers that were started."""

    def running(self) -> bool:
        """Whether any of them still works."""
        ...

    def complaints(self) -> list[str]:
        """What went wrong with those that ended."""
        ...

    def stop(self) -> None:
        """Ends those that work, and what they are making; it goes on from its checkpoints the next time."""
        ...


class Engine(Protocol):
    """Starts workers."""

    @property
    def jobs(self) -> int:
        """How many."""
        ...

    def start(self, arguments: Sequence[str], plan: Path) -> Workers:
        """Starts `python -m lightning_modules ARGUMENTS`, `jobs` times.

        Args:
            arguments: Of a worker.
            plan: Its plan; logs go beside it, and workers end where it is removed.
        """
        ...


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, which share its cores.

    Attributes:
        jobs: How many.
        program: Arguments of Python that name the command line.
    """

    jobs: int
    program: Sequence[str] = PROGRAM

    def start(self, arguments: Sequence[str], plan: Path) -> Workers:
        """Starts them."""
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": sources()}
        started = _LocalWorkers(plan.parent)
        try:
            for number in range(self.jobs):
                started.add(number, [sys.executable, *self.program, *arguments], environment)
        except BaseException:
            started.stop()
            raise
        return started


class _LocalWorkers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with (self.folder / f"worker{number}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))

    def running(self) -> bool:
        return any(process.poll() is None for process in self.processes)

    def complaints(self) -> list[str]:
        return [
            f"a worker ended with status {process.returncode}: {self.folder}/worker{number}.log"
            for number, process in enumerate(self.processes)
            if process.returncode
        ]

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait()


@dataclass(frozen=True)
class DaskWorkers:
    """Workers of a Dask cluster, one thread of it each.

    Attributes:
        jobs: How many are asked for; those beyond the cluster's threads wait, and find nothing left.
        scheduler: Address, `tcp://host:8786`, or the path of a scheduler's JSON file.
        retries: How often one that died is started again elsewhere.
        program: Arguments of Python that name the command line.

    Raises:
        EngineError: Dask is not installed, or nobody answers.
    """

    jobs: int
    scheduler: str
    retries: int = 10
    program: Sequence[str] = PROGRAM

    def start(self, arguments: Sequence[str], plan: Path) -> Workers:
        """Hands them to the cluster."""
        client = self._client()
        shared = shared_environment()
        futures = [
            client.submit(
                run_worker,
                [*self.program, *arguments],
                folder=os.getcwd(),
                environment=shared,
                plan=str(plan.resolve()),
                log=str(plan.resolve().parent / f"worker{number}.log"),
                key=f"{plan.stem}-{number}-{uuid.uuid4().hex}",
                retries=self.retries,
                pure=False,
            )
            for number in range(self.jobs)
        ]
        return _DaskFutures(client, futures, plan)

    def _client(self) -> Any:
        try:
            from distributed import Client
        except ImportError as error:
            raise EngineError(
                "--dask needs the package `distributed`, which the extra `dask` brings: "
                "pip install 'private-model-transcription[dask]'"
            ) from error
        where = {"scheduler_file": self.scheduler} if Path(self.scheduler).is_file() else {"address": self.scheduler}
        try:
            return Client(**where, timeout=30, set_as_default=False)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"--dask must be the address of a running scheduler (tcp://host:8786) or its JSON file, got "
                f"{self.scheduler!r}: {error}"
            ) from error


class _DaskFutures:
    def __init__(self, client: Any, futures: Sequence[Any], plan: Path) -> None:
        self.client = client
        self.futures = futures
        self.plan = plan

    def running(self) -> bool:
        return not all(future.done() for future in self.futures)

    def complaints(self) -> list[str]:
        return [f"a worker failed: {future.exception()}" for future in self.futures if future.status == "error"]

    def stop(self) -> None:
        # Dask lets a task that runs go on: without its plan a worker ends.
        self.plan.unlink(missing_ok=True)
        for future in self.futures:
            future.cancel()
        self.client.close()


def add_engine_arguments(add: Callable[..., Any]) -> None:
    """Adds `--jobs` and `--dask` to a command.

    Args:
        add: `add_argument` of its parser.
    """
    add("--jobs", type=int, default=1, help="Workers; 1 without --dask runs in this process.")
    add("--dask", default=None, metavar="ADDRESS", help="Scheduler of a Dask cluster whose workers run the fits.")


def engine_of(options: argparse.Namespace | Any) -> Engine | None:
    """The engine that `--jobs` and `--dask` ask for; None is this process.

    Raises:
        EngineError: Fewer than one job.
    """
    if options.jobs < 1:
        raise EngineError(f"--jobs must be 1 or more, got {options.jobs}")
    if options.dask is not None:
        return DaskWorkers(jobs=options.jobs, scheduler=options.dask)
    return None if options.jobs == 1 else LocalProcesses(jobs=options.jobs)


def shared_environment() -> dict[str, str | None]:
    """What workers on other machines take over; None where they must not keep one of their own."""
    shared: dict[str, str | None] = {LEDGERS: None}
    return shared | {name: _absolute(name, os.environ[name]) for name in SHARED if name in os.environ}


def _absolute(name: str, value: str) -> str:
    return str(Path(value).resolve()) if name == LEDGERS else value
