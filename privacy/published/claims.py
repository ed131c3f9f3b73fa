"""What a paper's theorem counts for one release: the published figure as a pure function of counts.

A claim is the paper's, not a guarantee (see `privacy.published` for what each leaves out). Claims of one theorem
compose as that theorem composes them; if no single theorem covers all of them, the published figure is `inf`.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from privacy.checks import check_count, check_delta, check_nonnegative, registered
from privacy.numerics.rdp import rdp_slope_epsilon
from privacy.published import published_dgd_epsilon

_REGISTRY: dict[str, type[Claim]] = {}


@dataclass(frozen=True)
class Claim(ABC):
    """One paper's cost of one release; `source` names paper and theorem."""

    kind: ClassVar[str]
    source: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _REGISTRY[cls.kind] = cls

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise ValueError(f"source must name paper and theorem, got {self.source!r}")
        for name in (field.name for field in dataclasses.fields(self) if field.name != "source"):
            object.__setattr__(self, name, check_nonnegative(name, getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `claim_from_dict` is the inverse."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class RdpSlope(Claim):
    """A release whose Renyi curve the theorem takes as `slope` times the order (DPDFD Theorem 3, DPSD Theorem 1)."""

    kind: ClassVar[str] = "rdp_slope"
    slope: float


@dataclass(frozen=True)
class NoisyVotesClaim(Claim):
    """One noisy vote of DGD's privacy analysis; `epsilon1`, the latent codes' cost, is counted once per run."""

    kind: ClassVar[str] = "noisy_votes"
    epsilon0: float
    epsilon1: float = 0.0


@dataclass(frozen=True)
class WholeRun(Claim):
    """The paper states one ε for the whole run, however many responses (LabelDP; DPSD's Theorem 2, label switch).

    **What it does not bound.** It is label-DP of one response, in the teacher's label of one synthetic image. A private
    record can change the teacher and with it all N responses (see `RandomizedResponse`); and a generator
    trained against the private teacher leaks without any bound. DPSD's Eq. (5) as printed has no ε at all: it answers
    outside the candidate set only if the teacher's label lies inside. The claim belongs to DPSD's Algorithm 2.
    """

    kind: ClassVar[str] = "whole_run"
    epsilon: float


def claim_from_dict(data: Mapping[str, Any]) -> Claim:
    """Rebuilds a claim from `to_dict`.

    Raises:
        ValueError: The kind is unknown or the fields do not fit it.
    """
    cls, values = registered(_REGISTRY, data)
    return cls(**values)


def published_epsilon(counts: Mapping[Claim, int], delta: float) -> float:
    """The papers' figure for a run: 0 for nothing, `inf` where no single theorem covers all claims together.

    Raises:
        ValueError: A negative or fractional count, or `delta` outside (0, 1).

    >>> step = RdpSlope("DPDFD Theorem 3", 2 * (1e-3 / 100) ** 2 * 10 * 256)
    >>> round(published_epsilon({step: 200}, 1e-5), 4)
    0.0456
    >>> published_epsilon({step: 1, WholeRun("LabelDP", 1.0): 1}, 1e-5)
    inf
    """
    delta = check_delta(delta)
    kept: dict[Claim, int] = {}
    for claim, count in counts.items():
        if not isinstance(claim, Claim):
            raise ValueError(f"counts must map claims to how often they were made, got the key {claim!r}")
        number = check_count("count", count)
        if number:
            kept[claim] = number
    if not kept:
        return 0.0
    if len({(claim.kind, claim.source) for claim in kept}) > 1:
        return math.inf
    slopes = [(claim.slope, count) for claim, count in kept.items() if isinstance(claim, RdpSlope)]
    if slopes:
        return rdp_slope_epsilon(math.fsum(slope * count for slope, count in slopes), delta)
    # DGD counts nothing for some uses of private models, which are not votes either.
    free = {claim for claim in kept if isinstance(claim, NoisyVotesClaim) and not claim.epsilon0 and not claim.epsilon1}
    kept = {claim: count for claim, count in kept.items() if claim not in free}
    if len(kept) != 1:
        return math.inf if kept else 0.0
    ((claim, count),) = kept.items()
    if isinstance(claim, NoisyVotesClaim):
        return published_dgd_epsilon(count, claim.epsilon0, delta, claim.epsilon1)
    if isinstance(claim, WholeRun):
        return claim.epsilon
    raise ValueError(f"no published composition is known for {type(claim).__name__}")
