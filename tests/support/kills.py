"""Fits in a process of their own that can be killed, and that write down each release as they make it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.processes import Forked

from lightning_modules import DPDFD, cli as command_line
from lightning_modules.losses.targets import Annotation
from privacy.mechanisms.base import ReproducibleNoise

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


def forked(*arguments: str, log: Path = Path("said.txt"), before: Callable[[], object] = lambda: None) -> Forked:
    """A command in a process of its own, in which `before` is called before it."""

    def command() -> None:
        sys.argv = ["LightningCLI", *arguments]
        before()
        command_line.main()

    return Forked(command, log=log)
