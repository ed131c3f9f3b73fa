"""Annotator for votes: noisy labels by an ensemble of teachers on disjoint shards (DGD; Papernot et al. 2017, 2018)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch

from privacy.account import Budget, BudgetExceeded
from privacy.annotators.base import Annotator, of_all_processes
from privacy.checks import check_positive, look_up
from privacy.mechanisms.description import FLOATS, MechanismDescription, of_shards
from privacy.mechanisms.noise import NoiseSource
from privacy.mechanisms.votes import VOTE_MECHANISMS, NoisyVote, laplace_latents
from privacy.plan import Charge
from privacy.published.claims import Claim

VoteMechanism = Literal["laplace", "gaussian"]


class VoteAnnotator(Annotator):
    """Labels by noisy votes (DGD Eq. 3). A *call* of this annotator is one query.

    Teachers are trained on disjoint shards, so one record changes one teacher: two counts of each query move by 1.

    | `mechanism` | response | record-level, each query |
    |---|---|---|
    | `laplace` | argmax(counts + Lap(b)), b = 2/ε₀ = 40: DGD Eq. 3 | two unit shifts of Laplace noise |
    | `gaussian` | argmax(counts + N(0, σ²)): GNMax, DGD+ | μ² = 2/σ² |

    Args:
        mechanism: See the table.
        scale: b of the Laplace kind, σ of the Gaussian one, in votes.
        latent_epsilon: ε₁ of the Laplace noise on the VAE's latent codes (`perturb_latents`); None adds none. It enters
            only the published figure, since no record-level bound rests on it.
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; null is the operating system's.
    """

    noise_setting: ClassVar[str] = "scale"

    def __init__(
        self,
        *,
        mechanism: VoteMechanism = "laplace",
        scale: float = 40.0,
        latent_epsilon: float | None = None,
        budget: Budget = Budget(),
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(budget=budget, noise=noise)
        look_up("mechanism", mechanism, VOTE_MECHANISMS)  # refuses one whose cost is unknown
        check_positive("scale", scale)
        if latent_epsilon is not None:
            check_positive("latent_epsilon", latent_epsilon)
        self.mechanism: VoteMechanism = mechanism
        self.scale = float(scale)
        self.latent_epsilon = latent_epsilon

    @property
    def votes(self) -> NoisyVote:
        """Noise on the counts, with its cost."""
        return VOTE_MECHANISMS[self.mechanism]

    @property
    def claim_of_nonprivate_access(self) -> Claim | None:
        """DGD does not count its baseline classifier; see `Annotator.claim_of_nonprivate_access`."""
        return self.votes.claim(math.inf, 0.0)

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        release, claim = self.votes.event(self.scale), self.votes.claim(self.scale, self.latent_epsilon or 0.0)
        return Charge(release=release, claim=claim)

    @of_all_processes(samples=0)
    def annotate(self, counts: torch.Tensor) -> torch.Tensor:
        """Charges every query, then answers it.

        Args:
            counts: Votes per class of each query, shape (N, c), int64; each sample sums to the number of teachers.
                **Private.**

        Returns:
            Labels, shape (N,), int64, on the device of `counts`.

        Raises:
            ValueError: The counts are not such: nothing is charged.
            BudgetExceeded: The target does not allow all of them: nothing is charged or released.
        """
        _, classes = self.shape
        if counts.ndim != 2 or len(counts) < 1 or counts.shape[1] != classes or counts.dtype != torch.int64:
            raise ValueError(
                f"counts must be int64 of shape (N, {classes}), got {counts.dtype} of shape {tuple(counts.shape)}"
            )
        # Two counts move by 1 because each teacher has one vote; the number of teachers is public.
        if bool((counts < 0).any()) or bool((counts.sum(dim=1) != counts[0].sum()).any()):
            raise ValueError("counts must hold one vote of each teacher: each query of one sum, none below 0")
        if self.affordable(limit=len(counts)) < len(counts):
            raise BudgetExceeded(self.account.refusal(self.charge))
        for _ in range(len(counts)):
            self._spend(self.charge)
        return self.votes.labels(counts, scale=self.scale, noise=self.noise)

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
        noisy = laplace_latents(codes, epsilon=self.latent_epsilon, noise=self.noise)
        return noisy / noisy.abs().amax(dim=1, keepdim=True).clamp_min(1.0)

    def describe(self) -> MechanismDescription:
        return of_shards(
            noise=FLOATS,
            mechanism=(
                f"one label for each queried image, the class of most votes among teachers on disjoint shards after "
                f"{self.votes.words.format(self.scale)} was added to every count (mechanism={self.mechanism})"
            ),
            source=self.votes.source,
            published_source=self.votes.published_source,
        )
