"""Noisy labels by the votes of an ensemble of teachers on disjoint shards (DGD; Papernot et al. 2017, 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from privacy.checks import check_positive, look_up
from privacy.description import FLOATS, MechanismDescription, of_shards
from privacy.mechanisms.base import Mechanism, Shape
from privacy.mechanisms.votes import VOTE_MECHANISMS, NoisyVote, laplace_latents
from privacy.plan import Charge
from privacy.published.claims import Claim

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
        look_up("kind", self.kind, VOTE_MECHANISMS)  # refuses one whose cost is unknown
        check_positive("scale", self.scale)
        if self.latent_epsilon is not None:
            check_positive("latent_epsilon", self.latent_epsilon)

    @property
    def votes(self) -> NoisyVote:
        """Noise on the counts, with its cost."""
        return VOTE_MECHANISMS[self.kind]

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """DGD does not count its baseline classifier; see `Mechanism.claim_of_nonprivate_access`."""
        return self.votes.claim(math.inf, 0.0)

    def charge(self, shape: Shape) -> Charge:
        release, claim = self.votes.event(self.scale), self.votes.claim(self.scale, self.latent_epsilon or 0.0)
        return Charge(release=release, claim=claim)

    def charge_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        (counts,), classes = tensors, shape.num_classes
        if counts.ndim != 2 or len(counts) < 1 or counts.shape[1] != classes or counts.dtype != torch.int64:
            raise ValueError(
                f"counts must be int64 of shape (N, {classes}), got {counts.dtype} of shape {tuple(counts.shape)}"
            )
        # Two counts move by 1 because each teacher has one vote; the number of teachers is public.
        if bool((counts < 0).any()) or bool((counts.sum(dim=1) != counts[0].sum()).any()):
            raise ValueError("counts must hold one vote of each teacher: each query of one sum, none below 0")
        return self.charge(shape), len(counts)

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Labels of queries.

        Args:
            shape: See `Mechanism`.
            tensors: Votes per class of each query, shape (N, c), int64; each sample sums to the number of teachers.
            settings: None.

        Returns:
            Labels, shape (N,), int64, on the device of the counts.
        """
        return self.votes.labels(tensors[0], scale=self.scale, noise=self.source)

    def perturb_latents(self, codes: torch.Tensor) -> torch.Tensor:
        """Adds Laplace noise of scale 2c/ε₁ to normalised codes (DGD Sec. III-E), and rescales them for the decoder.

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
        noisy = laplace_latents(codes, epsilon=self.latent_epsilon, noise=self.source)
        return noisy / noisy.abs().amax(dim=1, keepdim=True).clamp_min(1.0)

    def describe(self, shape: Shape) -> MechanismDescription:
        return of_shards(
            noise=FLOATS,
            mechanism=(
                f"one label for each queried image, the class of most votes among teachers on disjoint shards after "
                f"{self.votes.words.format(self.scale)} was added to every count (mechanism={self.kind})"
            ),
            source=self.votes.source,
            published_source=self.votes.published_source,
        )
