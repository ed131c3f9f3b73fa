"""Fits in two processes that fail, and are ended, where they would hang.

`in_processes` forks from the test, so that nothing is imported again, and tells each process its rank as torchrun
does: a fit of two takes about a second.
`command_line` is what a user types, in new processes, each of which imports everything.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from support.runs import fit

__all__ = ["TWO", "Ended", "StateOfEach", "command_line", "fit_in_processes", "in_processes", "saved_by"]

TWO = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"]


class StateOfEach(Callback):
    """At the end of a fit, or after an error, writes what each process then has into `process<rank>.pt`."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, "")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._write(trainer, pl_module, f"{type(exception).__name__}: {exception}")

    def _write(self, trainer: Trainer, pl_module: LightningModule, error: str) -> None:
        session = getattr(pl_module, "session", None)
        account = session.account if session is not None and session.is_open else None
        torch.save(
            {
                "weights": pl_module.state_dict(),
                "steps": getattr(pl_module, "steps_done", trainer.global_step),
                "epsilon": None if account is None else account.epsilon(),
                "queries": None if account is None else account.queries(scope="run"),
                "ledger": None if account is None else type(account.ledger).__name__,
                "error": error,
                "rank": trainer.global_rank,
            },
            f"process{trainer.global_rank}.pt",
        )


def saved_by(rank: int) -> dict[str, Any]:
    """What `StateOfEach` wrote in one process, in the working folder."""
    content: dict[str, Any] = torch.load(f"process{rank}.pt", map_location="cpu", weights_only=True)
    return content


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    code: int
    printed: str


def in_processes(act: Callable[[], Any], *, seconds: float = 60, count: int = 2, check: bool = True) -> list[Ended]:
    """Runs the same thing in forked processes that find each other as a launcher's do, and ends all after a time.

    Args:
        act: What is run.
        seconds: Most that it may take.
        count: How many processes.
        check: Whether each has to end without an error.

    Returns:
        How each ended, by rank.

    Raises:
        AssertionError: Some process took longer, or raised; with what they printed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [Path(f"printed_{time.monotonic_ns()}_{rank}.txt").resolve() for rank in range(count)]
    forked = multiprocessing.get_context("fork")
    children = [forked.Process(target=_run, args=(act, rank, count, port, files[rank])) for rank in range(count)]
    for child in children:
        child.start()
    deadline = time.monotonic() + seconds
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    hung = [rank for rank, child in enumerate(children) if child.is_alive()]
    for child in children:
        _end_group(child.pid)
        child.join()
    ended = [
        Ended(int(child.exitcode or 0), file.read_text(encoding="utf-8", errors="replace") if file.exists() else "")
        for child, file in zip(children, files, strict=True)
    ]
    text = "\n".join(f"--- process {rank} ended with {end.code}\n{end.printed}" for rank, end in enumerate(ended))
    assert not hung, f"processes {hung} not done after {seconds} s:\n{text}"
    assert not check or not any(end.code for end in ended), text
    return ended


def _run(act: Callable[[], Any], rank: int, count: int, port: int, printed: Path) -> None:
    os.setpgrp()  # so that one signal ends whatever this starts
    os.environ |= {
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    rank_zero_only.rank = rank
    code = 1
    with printed.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        try:
            act()
            code = 0
        except SystemExit as ended:
            print(ended.code)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_group(group: int | None) -> None:
    if group is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def fit_in_processes(config: dict[str, Any], *arguments: str, seconds: float = 60, check: bool = True) -> list[Ended]:
    """`support.runs.fit` in two processes, each of which leaves its state, see `StateOfEach`."""
    trainer = dict(config["trainer"])
    trainer["callbacks"] = [*trainer.get("callbacks", []), {"class_path": f"{__name__}.StateOfEach"}]
    for rank in range(2):
        Path(f"process{rank}.pt").unlink(missing_ok=True)
    whole = {**config, "trainer": trainer}
    return in_processes(lambda: fit(whole, *TWO, *arguments), seconds=seconds, check=check)


def command_line(*arguments: str, seconds: float = 100, processes: Sequence[dict[str, str]] = ({},)) -> list[Any]:
    """`python -m lightning_modules` with these arguments, ended with all that it started after a time.

    Args:
        arguments: What a user types.
        seconds: Most that it may take.
        processes: Environment of each process that is started at the same time, for a launcher that is played here.

    Returns:
        A `subprocess.CompletedProcess` of each, stdout and stderr together.

    Raises:
        AssertionError: It took longer; with what was printed.
    """
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "lightning_modules", *arguments],
            env={**environment, **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for extra in processes
    ]
    ended, deadline = [], time.monotonic() + seconds
    hung = False
    for process in started:
        try:
            printed, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            hung = True
            _end_group(process.pid)
            printed, _ = process.communicate()
        _end_group(process.pid)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, printed))
    assert not hung, f"not done after {seconds} s:\n" + "\n---\n".join(done.stdout for done in ended)
    return ended
