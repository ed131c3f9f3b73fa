"""Fits in a process of their own that can be killed, and that write down each release as they make it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_modules import DPDFD
from lightning_modules import cli as command_line
from lightning_modules.losses.targets import Annotation
from privacy.mechanisms.noise import ReproducibleNoise

TRACE = "released.txt"


class TracedNoise(ReproducibleNoise):
    """Noise that depends on (seed, step), charged as if it could not be drawn again; each draw is written down first.

    So a resumed run draws what an uninterrupted one would have, and the file says what all attempts have released.
    """

    secure = True

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.seed, self.step = seed, 0

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        handle = os.open(TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{self.step}\n".encode())
        os.close(handle)
        self._bits = np.random.Philox(key=[self.seed, self.step])
        return super().gaussian(shape)


class TracedDPDFD(DPDFD):
    """Tells its noise which step it is, and takes its time, so that whoever wants to kill it within a step can."""

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        noise: Any = self.mechanism.noise
        noise.step = self.steps_done
        time.sleep(0.01)
        return super().annotate(outputs, images)


def released(folder: Path = Path()) -> int:
    """How many releases all attempts in a folder have made."""
    trace = folder / TRACE
    return len(trace.read_bytes().splitlines()) if trace.exists() else 0


class Forked:
    """A command in a copy of this process, which has imported everything already.

    Args:
        arguments: Of the command line.
        log: File that takes what it says.
        before: Called in the copy before the command.
    """

    def __init__(
        self, *arguments: str, log: Path = Path("said.txt"), before: Callable[[], object] = lambda: None
    ) -> None:
        self.log = log
        self._ended: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stdout = sys.stderr = log.open("w", encoding="utf-8", buffering=1)
            for logger in (logging.getLogger(name) for name in ("lightning", "lightning.pytorch", "lightning.fabric")):
                for handler in list(logger.handlers):
                    if type(handler) is logging.StreamHandler:
                        handler.setStream(sys.stderr)
                    else:  # pytest's
                        logger.removeHandler(handler)
            sys.argv = ["LightningCLI", *arguments]
            before()
            command_line.main()
            status = 0
        except SystemExit as error:
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def running(self) -> bool:
        """Whether it has not ended yet."""
        if self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended is None

    def status(self, *, seconds: float = 120) -> int:
        """Its exit status, negative where a signal has ended it."""
        end = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"still running after {seconds} s: {self.said}")
            time.sleep(0.01)
        assert self._ended is not None
        return self._ended

    def until(self, condition: Callable[[], bool], *, seconds: float = 120) -> None:
        """Waits for something that it does."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.running() or time.monotonic() > end:
                raise AssertionError(f"it ended ({self._ended}) or took too long: {self.said}")
            time.sleep(0.001)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Sends a signal, unless it has ended, and waits for the end."""
        if self.running():
            os.kill(self.pid, number)
        return self.status()
