"""Fits in two processes that fail, and are ended, where they would hang.

`in_processes` forks from the test, so that nothing is imported again, and tells each process its rank as torchrun
does: a fit of two takes about a second.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from support.runs import fit

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


class Forked:
    """What runs in a copy of this process, which has imported everything already.

    Args:
        act: Called in the copy.
        log: File that takes what it prints.
    """

    def __init__(self, act: Callable[[], Any], *, log: Path) -> None:
        self.log = log.resolve()
        self._process = multiprocessing.get_context("fork").Process(target=_logged, args=(act, self.log))
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number, which is that of its group as well."""
        return self._process.pid or 0

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.is_alive()

    def status(self, *, seconds: float = 120) -> int:
        """Its exit status, negative where a signal has ended it; after a time it is killed.

        Raises:
            TimeoutError: It took longer.
        """
        end = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > end:
                _end_group(self.pid)
                raise TimeoutError(f"still running after {seconds} s: {self.said}")
            time.sleep(0.01)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def until(self, condition: Callable[[], bool], *, seconds: float = 120) -> None:
        """Waits for something that it does."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.running() or time.monotonic() > end:
                raise AssertionError(f"it ended ({self._process.exitcode}) or took too long: {self.said}")
            time.sleep(0.001)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Sends a signal, unless it has ended, and waits for the end."""
        if self.running():
            os.kill(self.pid, number)
        return self.status()


def _logged(act: Callable[[], Any], log: Path) -> None:
    """Calls `act` in a group of its own, so that one signal ends whatever it starts; what it prints goes to a file."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    for logger in (logging.getLogger(name) for name in ("lightning", "lightning.pytorch", "lightning.fabric")):
        for handler in list(logger.handlers):
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stderr)
            else:  # pytest's
                logger.removeHandler(handler)
    act()


class Ended(NamedTuple):
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
        TimeoutError: Some process took longer; with what it printed.
        AssertionError: Some process raised; with what they printed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def of_rank(rank: int) -> None:
        launched = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": count, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in launched.items()} | {"MASTER_ADDR": "127.0.0.1"}
        rank_zero_only.rank = rank
        act()

    logs = [Path(f"printed_{time.monotonic_ns()}_{rank}.txt") for rank in range(count)]
    children = [Forked(partial(of_rank, rank), log=log) for rank, log in enumerate(logs)]
    end = time.monotonic() + seconds
    try:
        ended = [Ended(child.status(seconds=max(0.0, end - time.monotonic())), child.said) for child in children]
    finally:
        for child in children:
            _end_group(child.pid)
    text = "\n".join(f"--- process {rank} ended with {one.code}\n{one.printed}" for rank, one in enumerate(ended))
    assert not check or not any(one.code for one in ended), text
    return ended


def _end_group(group: int) -> None:
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
