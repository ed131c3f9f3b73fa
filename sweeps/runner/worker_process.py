"""One worker as a process of its own, started by Dask. Imports nothing, so that a worker of Dask's stays small."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["PROGRAM", "run_worker", "sources"]

PROGRAM = ("-m", "lightning_modules")
POLL_SECONDS = 0.5


def run_worker(
    arguments: Sequence[str], *, folder: str, environment: Mapping[str, str | None], plan: str, log: str
) -> None:
    """Runs one worker, and ends it where its plan is removed. Called on a machine of Dask's.

    In a process of its own, since a fit handles signals, which only a main thread can, and leaves nothing behind. Where
    Dask's worker is killed and its machine lives, that process goes on: it holds the claim of what it makes until it is
    done, and whoever is started in its place waits for it.

    Args:
        arguments: Of Python.
        folder: Working folder.
        environment: What it takes over; None is taken out, whatever this machine has.
        plan: File of the plan.
        log: Where its output is added.

    Raises:
        RuntimeError: It ended with an error, or was killed: whoever started it may try again.
    """
    taken = {"OMP_NUM_THREADS": "1", **os.environ, **environment, "PYTHONPATH": sources()}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={name: value for name, value in taken.items() if value is not None},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while process.poll() is None:
            if not os.path.isfile(plan):
                process.terminate()
            time.sleep(POLL_SECONDS)
    if process.returncode and os.path.isfile(plan):
        raise RuntimeError(f"a worker ended with status {process.returncode}: {log}")


def sources() -> str:
    """`PYTHONPATH` by which a process finds this project also from a checkout that is not installed."""
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
