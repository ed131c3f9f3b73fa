"""What the papers' own theorems give, as printed, and what each counts for one release. None of it bounds anything.

The papers' tables are indexed by these figures. They are claims of the papers, **not** guarantees of this project: each
docstring says what the claim leaves out. The figure that holds for the data a teacher was trained on is the
record-level one of `privacy.accounting.composition`. Claims of one theorem compose as that theorem composes them; if no
single theorem covers all of them, the published figure is `inf`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from privacy.checks import check_count, check_delta, check_number, registered
from privacy.numerics.epsilon import rdp_slope_epsilon


def dpdfd_rdp_slope(norm_bound: float, num_classes: int, batch_size: int, noise_scale: float) -> float:
    """Slope in the order of the RDP that DPDFD Theorem 3 counts for one step: 2 C^2 c B / σ^2.

    Raises:
        ValueError: `norm_bound` or `noise_scale` is not positive, or a count is below 1.
    """
    bound = check_number("norm_bound", norm_bound, above=0)
    sigma = check_number("noise_scale", noise_scale, above=0, infinite=True)
    classes = check_count("num_classes", num_classes, minimum=1)
    batch = check_count("batch_size", batch_size, minimum=1)
    return 2.0 * (bound / sigma) ** 2 * classes * batch


def published_dpdfd_epsilon(
    norm_bound: float, num_classes: int, batch_size: int, steps: int, noise_scale: float, delta: float
) -> float:
    """DPDFD Theorem 3: ε after `steps` steps, at the best real order. DPSD's Theorem 1 is the same, with β for C.

    Source: [arXiv:2304.12528](https://arxiv.org/abs/2304.12528). With a = 2 C^2 c B T / σ^2 the claim is
    min over l > 1 of a l + log((l-1)/l) - (log δ + log l)/(l-1).

    **What it does not bound.** It composes all B T samples, each moved by 2 C sqrt(c) with its own noise of standard
    deviation σ. The noise added is σ C: where this function gives 0.0456, the record-level figure is 28.8 (noise σ C on
    every sample), 2 930 (σ C on their sum, as printed) or 676 029 (σ C / B on every sample). Nor does it account
    for DPSD's top-k mask computed from the teacher's gradient, or for a discriminator that is the teacher itself
    (DPSD-T).

    Args:
        norm_bound: C, the norm to which output gradients are normalised.
        num_classes: c.
        batch_size: B, samples in a batch.
        steps: T, steps of the whole procedure.
        noise_scale: σ.
        delta: failure probability in (0, 1).

    Raises:
        ValueError: Non-positive parameters or `delta` outside (0, 1).

    >>> round(published_dpdfd_epsilon(1e-3, 10, 256, 200, 100.0, 1e-5), 4)
    0.0456
    """
    slope = dpdfd_rdp_slope(norm_bound, num_classes, batch_size, noise_scale)
    return rdp_slope_epsilon(slope * check_count("steps", steps), delta)


def published_dgd_epsilon(
    num_queries: int, epsilon0: float, delta: float, epsilon1: float = 0.0, *, advanced: bool = False
) -> float:
    """DGD's noisy votes (Ge et al., IEEE TIP 32, 2023): the moments accountant of Papernot et al. (2017), its metric.

    N queries, each e0-DP, have log moments of at most N e0^2 l(l+1)/2, and the claim is e1 plus the least
    (N e0^2 l(l+1)/2 - log δ)/l over whole l. `advanced` is the formula printed in Sec. III-E instead, N e0^2 +
    e0 sqrt(-2 N log δ) + e1; Fig. 8 has a curve of each.

    **What it does not bound.** The baseline classifier that guides DGD's generator is fitted to all private records
    without noise. Nor does either give what Table I states for e0 = 1/20, 1.00 for 27 queries and 10.0 for 1300: the
    accountant gives 1.2809 and 10.3376, the formula 1.3142 and 11.9007. The text's 8.03 for 1000, here 8.8376, is what
    Papernot et al. print (their Fig. 4), by a bound from their own votes, which is private and is not computed here.

    Args:
        num_queries: N, queries answered by the vote.
        epsilon0: privacy parameter of one vote; its Laplace scale is 2/epsilon0.
        delta: failure probability in (0, 1).
        epsilon1: privacy parameter of the noise on the latent codes; 0 if there is none.
        advanced: whether by advanced composition, as in Sec. III-E.

    Raises:
        ValueError: Negative parameters or `delta` outside (0, 1).

    >>> round(published_dgd_epsilon(1000, 1 / 20, 1e-5), 4)
    8.8376
    >>> round(published_dgd_epsilon(1000, 1 / 20, 1e-5, advanced=True), 4)
    10.0871
    """
    total = check_count("num_queries", num_queries) * check_number("epsilon0", epsilon0, least=0) ** 2
    loss, eps1 = -math.log(check_delta(delta)), check_number("epsilon1", epsilon1, least=0)
    if advanced or not total:
        return total + math.sqrt(2.0 * total * loss) + eps1
    # Convex in l: the best whole order is next to the best real one.
    order = max(1, math.floor(math.sqrt(2.0 * loss / total)))
    return min(0.5 * total * (one + 1) + loss / one for one in (order, order + 1)) + eps1


@dataclass(frozen=True)
class Claim:
    """One paper's cost of one release; `source` names paper and theorem."""

    kind: ClassVar[str]
    source: str

    def __post_init__(self) -> None:
        for name in (field.name for field in dataclasses.fields(self) if field.name != "source"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), least=0))

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


_REGISTRY: dict[str, type[Claim]] = {one.kind: one for one in (RdpSlope, NoisyVotesClaim, WholeRun)}


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
    kept = {claim: number for claim, count in counts.items() if (number := check_count("count", count))}
    if not kept:
        return 0.0
    if len({(claim.kind, claim.source) for claim in kept}) > 1:
        return math.inf
    slopes = [(claim.slope, count) for claim, count in kept.items() if isinstance(claim, RdpSlope)]
    if slopes:
        return rdp_slope_epsilon(math.fsum(slope * count for slope, count in slopes), delta)
    # DGD counts nothing for some uses of private models, which are not votes either.
    kept = {one: n for one, n in kept.items() if not isinstance(one, NoisyVotesClaim) or one.epsilon0 or one.epsilon1}
    if len(kept) != 1:
        return math.inf if kept else 0.0
    ((claim, count),) = kept.items()
    if isinstance(claim, NoisyVotesClaim):
        return published_dgd_epsilon(count, claim.epsilon0, delta, claim.epsilon1)
    return claim.epsilon if isinstance(claim, WholeRun) else math.inf
