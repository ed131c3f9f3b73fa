"""Reproducible random numbers without a role for privacy: latents, priors, dropout.

They are keyed by (seed, step, rank, name) instead of a running state, so that a resumed run draws the same numbers as
an uninterrupted one. Privacy noise comes from `privacy.mechanisms.base`, never from here.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch


def key(seed: int, step: int, rank: int, name: str) -> int:
    """Derive a seed for `torch.Generator` from the coordinates of one draw."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, step: int, rank: int, name: str) -> torch.Generator:
    """A CPU generator for one draw."""
    return torch.Generator().manual_seed(key(seed, step, rank, name))


@dataclass(frozen=True)
class Draws:
    """The draws of one process of one run.

    Attributes:
        seed: Seed of the run, kept in its checkpoints.
        rank: Rank of the process.
        device: Device on which the draws are used.
    """

    seed: int
    rank: int
    device: torch.device

    @property
    def common(self) -> Draws:
        """Draws that are the same in each process."""
        return replace(self, rank=0)

    def stream(self, step: int, name: str) -> torch.Generator:
        """Makes a CPU generator for the draw `name` in a step."""
        return stream(self.seed, step, self.rank, name)

    def again(self, turn: int) -> Draws:
        """Returns draws for repetition `turn` of an operation within a step; 0 is the first."""
        return self if not turn else replace(self, seed=key(self.seed, turn, 0, "again"))

    @contextmanager
    def seeded(self, step: int) -> Iterator[None]:
        """Seeds everything random in the block, such as dropout, by the step, and restores global generators."""
        drawn_from = key(self.seed, step, self.rank, "step")
        # On a CPU without torch's lookup of accelerators at each step.
        seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seed(drawn_from)
            yield


def random_states(device: torch.device) -> tuple[bytes, ...]:
    """Returns the states of the global generators that a network on a device may use: torch's, NumPy's and Python's."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    ours = [state.numpy().tobytes() for state in states]
    return *ours, pickle.dumps(np.random.get_state()), pickle.dumps(random.getstate())


@contextmanager
def full_float32() -> Iterator[None]:
    """Computes matrix products and convolutions in full float32 instead of TF32, and makes cuDNN deterministic.

    Runs allow TF32 on a GPU, where equal seeds would then draw other images than on a CPU. The previous settings are
    restored on exit.
    """
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(allowed)
