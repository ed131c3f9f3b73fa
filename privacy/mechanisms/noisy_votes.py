"""Noisy votes of an ensemble (DGD; Papernot et al. 2017, 2018), and DGD's noise on latent codes.

Teachers are trained on disjoint shards, so one record changes one teacher: two counts of each query move by 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from privacy.checks import check_number, look_up
from privacy.events import Gaussian, LaplaceVotes
from privacy.mechanisms.base import FLOATS, Description, Mechanism, Shape, laplace, of_shards
from privacy.mechanisms.bounding import zero_non_finite_samples
from privacy.plan import Charge
from privacy.published import Claim, NoisyVotesClaim, RdpSlope

_GNMAX = "Papernot et al. 2018, Proposition 8"
_SOURCES = {
    "laplace": (
        "Laplace mechanism on two counts that move by one each, whatever the votes; loss distributions rounded "
        "pessimistically"
    ),
    "gaussian": "Gaussian mechanism on counts that move by sqrt(2) (Papernot et al. 2018); exact composition",
}
_PUBLISHED_SOURCES = {
    "laplace": (
        "DGD (Ge et al. 2023), by the moments accountant of Papernot et al. 2017: "
        "min over l of (N eps0^2 l(l+1)/2 - log delta)/l, + eps1"
    ),
    "gaussian": f"{_GNMAX} (RDP of noisy votes), taken by DGD for DGD+; without eps1",
}


def vote_counts(decisions: torch.Tensor, *, num_classes: int) -> torch.Tensor:
    """Votes per class, (N, c), from n teachers' decisions on each query, (n, N), both int64; rows sum to n."""
    return torch.nn.functional.one_hot(decisions, num_classes).sum(dim=0)


VoteMechanism = Literal["laplace", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class NoisyVotes(Mechanism):
    """Labels by noisy votes (DGD Eq. 3). Each query is a call of its own.

    Teachers are trained on disjoint shards, so one record changes one teacher: two counts of each query move by 1.

    | `kind` | response | record-level, each query |
    |---|---|---|
    | `laplace` | argmax(counts + Lap(b)), b = 2/ε₀ = 40: DGD Eq. 3 | two unit shifts of Laplace noise |
    | `gaussian` | argmax(counts + N(0, σ²)): GNMax, DGD+ | μ² = 2/σ² |

    Attributes:
        kind: See the table.
        scale: b of the Laplace kind, σ of the Gaussian one, in votes.
        latent_epsilon: ε₁ of the Laplace noise on the VAE's latent codes (`perturb_latents`); null adds none. It enters
            only the published figure, since no record-level bound rests on it.
    """

    noise_setting: ClassVar[str] = "scale"

    kind: VoteMechanism = "laplace"
    scale: float = 40.0
    latent_epsilon: float | None = None

    def __post_init__(self) -> None:
        look_up("kind", self.kind, _SOURCES)  # refuses one whose cost is unknown
        check_number("scale", self.scale, above=0)
        check_number("latent_epsilon", self.latent_epsilon, above=0, null="no noise")

    def claim(self, scale: float, epsilon1: float) -> Claim:
        """What the paper counts for one label; ε₁ of the latent codes' noise enters only DGD's."""
        if self.kind == "laplace":
            return NoisyVotesClaim(source="DGD Sec. IV-B", epsilon0=2.0 / scale, epsilon1=epsilon1)  # b = 2/ε₀
        return RdpSlope(source=_GNMAX, slope=1.0 / scale**2)

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """DGD counts nothing for its baseline classifier, as for infinite noise; see `Mechanism`."""
        return self.claim(math.inf, 0.0)

    def cost(self, shape: Shape) -> Charge:
        # argmax is post-processing of counts with L2 sensitivity √2.
        release = LaplaceVotes(self.scale) if self.kind == "laplace" else Gaussian(mu=math.sqrt(2.0) / self.scale)
        return Charge(release=release, claim=self.claim(self.scale, self.latent_epsilon or 0.0))

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        (counts,), classes = tensors, shape.num_classes
        if counts.ndim != 2 or len(counts) < 1 or counts.shape[1] != classes or counts.dtype != torch.int64:
            raise ValueError(
                f"counts must be int64 of shape (N, {classes}), got {counts.dtype} of shape {tuple(counts.shape)}"
            )
        # Two counts move by 1 because each teacher has one vote; the number of teachers is public.
        if bool((counts < 0).any()) or bool((counts.sum(dim=1) != counts[0].sum()).any()):
            raise ValueError("counts must hold one vote of each teacher: each query of one sum, none below 0")
        return self.cost(shape), len(counts)

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Labels of queries.

        Args:
            shape: See `Mechanism`.
            tensors: Votes per class of each query, shape (N, c), int64; each sample sums to the number of teachers.
            settings: None.

        Returns:
            Labels, shape (N,), int64, on the device of the counts: argmax(counts + noise). Ties go to the lowest class,
            which reveals nothing more.
        """
        counts = tensors[0].detach().cpu().double()
        shape_of_noise = tuple(counts.shape)
        draws = laplace(self.source, shape_of_noise) if self.kind == "laplace" else self.source.gaussian(shape_of_noise)
        return (counts + self.scale * draws).argmax(dim=1).to(tensors[0].device)

    def perturb_latents(self, codes: torch.Tensor) -> torch.Tensor:
        """Adds Laplace noise of scale 2c/ε₁ to normalised codes (DGD Sec. III-E), and rescales them for the decoder.

        Two codes in [-1, 1] differ by at most 2 in each of c coordinates, so that one sample costs a pure ε₁. Samples
        beyond it are divided by their largest entry; samples that are not finite become zeros.

        This bounds nothing about a private record: DGD counts ε₁ once, as if a private record were one sample. Samples
        are synthetic, and if they depend on private data (through a generator trained against the baseline), all of
        them do, and they also reach the student as query images and through the decoder. So nothing is charged. If the
        images come only from public information, the codes are public already.

        Args:
            codes: Shape (N, c), c the width of the code.

        Returns:
            Shape (N, c), detached, the largest entry of each sample at most 1 in magnitude; `codes` themselves,
            detached, if `latent_epsilon` is None.
        """
        if self.latent_epsilon is None:
            return codes.detach()
        rows = _within_one(zero_non_finite_samples(codes.cpu())).clamp(-1.0, 1.0)
        noise = laplace(self.source, tuple(rows.shape)) * (2 * codes.shape[1] / self.latent_epsilon)
        return _within_one((rows + noise).to(codes))

    def describe(self, shape: Shape) -> Description:
        noise = f"Lap({self.scale:g})" if self.kind == "laplace" else f"N(0, {self.scale:g}^2)"
        return of_shards(
            noise=FLOATS,
            mechanism=(
                f"one label for each queried image, the class of most votes among teachers on disjoint shards after "
                f"{noise} was added to every count (mechanism={self.kind})"
            ),
            source=_SOURCES[self.kind],
            published_source=_PUBLISHED_SOURCES[self.kind],
        )


def _within_one(rows: torch.Tensor) -> torch.Tensor:
    """Samples (N, c), divided by their largest entry if it lies beyond [-1, 1]."""
    return rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(1.0)
