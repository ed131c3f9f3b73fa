"""What a mechanism is: a value that knows its cost, how it bounds and noises, and how it is described; and its noise.

It knows nothing of budgets, files or processes: a `PrivacySession` charges its cost before it answers.

The randomness that privacy rests on is independent of every seed of the run. `seed_everything`, a configuration file or
a checkpoint must never make the noise reproducible: an adversary could subtract it. `torch.Generator` is no
alternative: on the CPU it keeps only 32 bits of its seed, which can be searched.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.checks import check_count
from privacy.plan import Charge
from privacy.published import Claim

FLOATS = "as floating-point numbers, added in float64 and rounded once; not hardened against attacks on their low bits"
THRESHOLDS = "compared with whole-number thresholds that are rounded towards privacy"

_ANY_CHANGE = "zero-out of one record; the bound holds for replace-one and add-or-remove as well"


class NoiseSource(ABC):
    """Uniform 64-bit words, and the distributions that the mechanisms draw from them.

    Attributes:
        secure: False if others can reproduce the noise, which voids a guarantee built on it.
    """

    secure: bool = False

    @abstractmethod
    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` independent, uniform 64-bit words, shape (count,)."""

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        """Standard normal draws by Box-Muller from 64-bit uniforms: float64, on the CPU.

        The tails end at 9.5 standard deviations, beyond which a standard normal has mass below 3e-21. Floating-point
        Gaussians are not hardened against attacks on their low bits (Mironov 2012).
        """
        total = int(np.prod(tuple(shape), dtype=np.int64))
        half = (total + 1) // 2
        uniform = (self.words(2 * half).astype(np.float64) + 0.5) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform[:half]))
        angle = 2.0 * np.pi * uniform[half:]
        draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:total]
        return torch.from_numpy(draws).reshape(tuple(shape))


class SystemNoise(NoiseSource):
    """Noise from the operating system's cryptographic generator, never seeded and never saved."""

    secure = True

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` words of `os.urandom`, shape (count,)."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class ReproducibleNoise(NoiseSource):
    """Noise that anyone with the seed can reproduce: for tests and debugging only. It **voids** the guarantee.

    Args:
        seed: Any integer from 0.
    """

    def __init__(self, *, seed: int) -> None:
        self._bits = np.random.Philox(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of a Philox stream, shape (count,)."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


def uniform_integers(noise: NoiseSource, limits: torch.Tensor) -> torch.Tensor:
    """Integers in [0, limit), int64, one for each of int64 `limits` from 1, any shape; exactly uniform by rejection."""
    flat = limits.detach().cpu().numpy().astype(np.uint64).reshape(-1)
    words = noise.words(flat.size).copy()
    # The last, incomplete multiple of the limit would make small values likelier. Its length is 2**64 % limit, which
    # equals (2**64 - limit) % limit.
    excess = (np.uint64(0) - flat) % flat
    while (bad := words > np.uint64(2**64 - 1) - excess).any():
        words[bad] = noise.words(int(bad.sum()))
    return torch.from_numpy((words % flat).astype(np.int64)).reshape(limits.shape)


def bernoulli(noise: NoiseSource, probabilities: Sequence[int], index: torch.Tensor) -> torch.Tensor:
    """Events of probability `probabilities[i] / 2**64` for each entry i of int64 `index`: bool, of its shape.

    Integer thresholds, from 0 to 2**64 - 1, make the probabilities exact: no rounding of floating-point numbers can
    favour an outcome.
    """
    thresholds = np.array(probabilities, dtype=np.uint64)[index.detach().cpu().numpy()]
    words = noise.words(int(thresholds.size)).reshape(thresholds.shape)
    return torch.from_numpy(np.asarray(words < thresholds))


def laplace(noise: NoiseSource, shape: Sequence[int]) -> torch.Tensor:
    """Standard Laplace draws (density exp(-|x|)/2), float64 on the CPU, as the difference of two exponentials.

    The tails end at 45 scales, beyond which the distribution has mass below 3e-20. Floating-point Laplace noise is not
    hardened against attacks on its low bits (Mironov 2012); votes release only the class.
    """
    words = noise.words(2 * math.prod(shape)).reshape(2, *shape)
    first, second = -np.log((words.astype(np.float64) + 0.5) * 2.0**-64)
    return torch.from_numpy(first - second)


@dataclass(frozen=True)
class Description:
    """Description of a mechanism, in plain text.

    Attributes:
        mechanism: What is released.
        source: Theorem or paper behind ε.
        published_source: Theorem behind the published figure; empty if the papers have none.
        noise: How the noise was drawn; empty if there is none.
        unit: What one neighbouring change touches.
        relation: Neighbouring relation, unless a more specific one follows from what was released.
        assumption: What else the bound rests on; may be empty.
    """

    mechanism: str
    source: str
    published_source: str = ""
    noise: str = FLOATS
    unit: str = "one training record of the teacher"
    relation: str = _ANY_CHANGE
    assumption: str = ""


def of_shards(**described: str) -> Description:
    """Description of what an ensemble of teachers on disjoint shards releases; arguments as above."""
    return Description(
        unit="one training record of one teacher",
        relation=f"{_ANY_CHANGE}, where a record's id alone decides its shard and a replacement has the same",
        assumption=(
            "teachers of different shards share nothing: each record was seen by only one of them, which its stable id "
            "decides (of clients its id and label, of pictures in folders of classes a name with the class in it), and "
            "where a record is added, removed or replaced the ids of all others stay as they are"
        ),
        **described,
    )


class Shape(NamedTuple):
    """What the cost of a call depends on besides the mechanism's settings: public, and fixed before the first call.

    Attributes:
        batch_size: B.
        num_classes: c.
        paper: Name of the calling method, whose paper's theorem gives the published figure.
        sample_rate: Rate q of Poisson sampling in direct training; 1 also until the data are known.
        secure_sampling: Whether the coins of that sampling cannot be reproduced.
    """

    batch_size: int
    num_classes: int
    paper: str = ""
    sample_rate: float = 1.0
    secure_sampling: bool = True


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Base of all mechanisms.

    Attributes:
        noise: Source of noise; null is the operating system's cryptographic generator.
    """

    noise_setting: ClassVar[str] = "noise_multiplier"
    """Name of the setting that scales the noise, for calibration."""
    more_is_noisier: ClassVar[bool] = True
    """Whether a larger value of that setting means more noise."""
    ledger_block: ClassVar[int] = 100
    """Number of releases that one synced line of the ledger reserves unless the budget says otherwise."""
    samples: ClassVar[int] = 0
    """Dimension of the tensors of a call along which samples lie; negative from the end."""
    source_of_labels: ClassVar[str] = ""
    """How an ε for labels alone is derived, if nothing bounds a record and the guarantee states one."""

    noise: NoiseSource | None = None

    @cached_property
    def source(self) -> NoiseSource:
        """Source of noise."""
        return self.noise or SystemNoise()

    def require(self, shape: Shape) -> None:
        """Refuses calls of a shape that the mechanism does not fit.

        Raises:
            ValueError: A setting does not fit.
        """
        check_count("batch_size", shape.batch_size, minimum=1)
        check_count("num_classes", shape.num_classes, minimum=2)

    @abstractmethod
    def cost(self, shape: Shape) -> Charge:
        """Cost of one call of this shape, for noise that nobody can reproduce."""

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        """Cost of a call on these tensors, and how many times it is charged.

        Raises:
            ValueError: They are not what is charged for.
        """
        for tensor in tensors:
            require_shape("what is released", tensor, shape)
        return self.cost(shape), 1

    @abstractmethod
    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Bounds and noises a call's private tensors, which are charged already; returns what is released."""

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """What the paper's theorem counts for using the teacher outside this mechanism; None if no theorem does."""
        return None

    @abstractmethod
    def describe(self, shape: Shape) -> Description:
        """Description of the mechanism and its figures, for the guarantee."""


def require_shape(name: str, given: torch.Tensor, shape: Shape, *, teachers: bool = False) -> None:
    """Refuses any shape but the one that is charged for: (B, c), or (n, B, c) for several `teachers`.

    Raises:
        ValueError: It has another.
    """
    found = tuple(given.shape)
    if found[-2:] != shape[:2] or len(found) != 2 + teachers or 0 in found:
        raise ValueError(
            f"{name} must have the shape {'(n, B, c) with ' if teachers else ''}(B, c) = {shape[:2]} that is charged "
            f"for, got {found}"
        )
