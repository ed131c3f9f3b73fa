"""What a mechanism is: a value that knows its cost, how it bounds and noises, and how it is described.

It knows nothing of budgets, files or processes: a `PrivacySession` charges its cost before it answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch

from privacy.mechanisms.noise import NoiseSource, SystemNoise
from privacy.plan import Charge
from privacy.published import Claim

FLOATS = "as floating-point numbers, added in float64 and rounded once; not hardened against attacks on their low bits"
THRESHOLDS = "compared with whole-number thresholds that are rounded towards privacy"

_ANY_CHANGE = "zero-out of one record; the bound holds for replace-one and add-or-remove as well"


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
class Mechanism:
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
        if shape.batch_size < 1 or shape.num_classes < 2:
            raise ValueError(
                f"batch_size must be 1 or more and num_classes 2 or more, got {shape.batch_size} and "
                f"{shape.num_classes}"
            )

    def cost(self, shape: Shape) -> Charge:
        """Cost of one call of this shape, for noise that nobody can reproduce."""
        raise NotImplementedError(f"{type(self).__name__} has no cost")

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        """Cost of a call on these tensors, and how many times it is charged.

        Raises:
            ValueError: They are not what is charged for.
        """
        for tensor in tensors:
            require_shape("what is released", tensor, shape)
        return self.cost(shape), 1

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Bounds and noises a call's private tensors, which are charged already; returns what is released."""
        raise NotImplementedError(f"{type(self).__name__} has no answer")

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """What the paper's theorem counts for using the teacher outside this mechanism; None if no theorem does."""
        return None

    def describe(self, shape: Shape) -> Description:
        """Description of the mechanism and its figures, for the guarantee."""
        raise NotImplementedError(f"{type(self).__name__} has no description")


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
