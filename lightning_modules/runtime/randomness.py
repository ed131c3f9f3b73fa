"""Reproducible draws that have nothing to do with privacy: latents, priors, dropout.

Keyed by (seed, step, rank, name) instead of by a moving state, so that a resumed run draws what an uninterrupted one
would have drawn. Noise that privacy rests on comes from `privacy.mechanisms.noise`, never from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["key", "seeded", "stream"]


def key(seed: int, step: int, rank: int, name: str) -> int:
    """A seed for `torch.Generator` out of the coordinates of one draw."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, step: int, rank: int, name: str) -> torch.Generator:
    """A CPU generator for one draw."""
    return torch.Generator().manual_seed(key(seed, step, rank, name))


@contextmanager
def seeded(seed: int, step: int, rank: int, device: torch.device) -> Iterator[None]:
    """Runs a block (dropout) under its own seed and leaves the global generators as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key(seed, step, rank, "step"))
        yield
