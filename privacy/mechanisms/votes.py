"""Release of noisy votes: one object for each noise, with its draws, sensitivity, cost and description.

Teachers are trained on disjoint shards, so one record changes one teacher: two counts of each query move by 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from privacy.events import DiscreteLaplaceVotes, GaussianVotes, LaplaceVotes, Release
from privacy.mechanisms.description import FLOATS
from privacy.mechanisms.draws import discrete_laplace, laplace
from privacy.mechanisms.noise import NoiseSource
from privacy.published.claims import Claim, NoisyVotesClaim, RdpSlope

__all__ = ["VOTE_MECHANISMS", "NoisyVote", "vote_mechanism"]

_THEOREM = "DGD Sec. III-E"
_GNMAX = "Papernot et al. 2018, Proposition 8"


class NoisyVote(ABC):
    """One noise on the counts; the label is the class of most noisy votes.

    Attributes:
        name: What the setting `mechanism` calls it.
        source: Theorem behind the record-level figure.
        published_source: Theorem behind the published figure.
        drawn: How the noise is drawn, for a reader.
        data_dependent: Whether a data-dependent cost of its votes is known.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    published_source: ClassVar[str]
    drawn: ClassVar[str] = FLOATS
    data_dependent: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def noisy(cls, counts: torch.Tensor, *, scale: float, noise: NoiseSource) -> torch.Tensor:
        """Counts of shape (N, c), int64 on the CPU, with noise on each."""

    @classmethod
    @abstractmethod
    def event(cls, scale: float) -> Release:
        """Record-level cost of one label."""

    @classmethod
    @abstractmethod
    def claim(cls, scale: float, *, latent_epsilon: float | None) -> Claim:
        """What the paper counts for one label; ε₁ of the latent codes' noise is part of DGD's formula only."""

    @classmethod
    @abstractmethod
    def free_claim(cls) -> Claim:
        """What the paper counts for a use of another model: zero."""

    @classmethod
    @abstractmethod
    def words(cls, scale: float) -> str:
        """The noise, for a reader."""


class _Laplacian(NoisyVote):
    published_source = "DGD (Ge et al. 2023), Sec. III-E: N eps0^2 + eps0 sqrt(-2 N log delta) + eps1"

    @classmethod
    def claim(cls, scale: float, *, latent_epsilon: float | None) -> Claim:
        """b = 2/ε₀."""
        return NoisyVotesClaim(source=_THEOREM, epsilon0=2.0 / scale, epsilon1=latent_epsilon or 0.0)

    @classmethod
    def free_claim(cls) -> Claim:
        """See `NoisyVote.free_claim`."""
        return NoisyVotesClaim(source=_THEOREM, epsilon0=0.0)


class LaplaceVote(_Laplacian):
    """counts + Lap(b): DGD Eq. 3."""

    name = "laplace"
    source = (
        "Laplace mechanism on two counts that move by one each, whatever the votes; loss distributions rounded "
        "pessimistically"
    )

    @classmethod
    def noisy(cls, counts: torch.Tensor, *, scale: float, noise: NoiseSource) -> torch.Tensor:
        """See `NoisyVote.noisy`."""
        return counts.double() + scale * laplace(noise, tuple(counts.shape))

    @classmethod
    def event(cls, scale: float) -> Release:
        """Two unit shifts of Laplace noise."""
        return LaplaceVotes(scale)

    @classmethod
    def words(cls, scale: float) -> str:
        """See `NoisyVote.words`."""
        return f"Lap({scale:g})"


class DiscreteLaplaceVote(_Laplacian):
    """The same on the integers: no floating-point low bits, at a slightly higher cost."""

    name = "discrete_laplace"
    source = (
        "discrete Laplace mechanism on two counts that move by one each, whatever the votes; loss distributions that "
        "are exact on the integers"
    )
    drawn = "as whole numbers, whose probabilities are right to about 1e-15 of their value"

    @classmethod
    def noisy(cls, counts: torch.Tensor, *, scale: float, noise: NoiseSource) -> torch.Tensor:
        """See `NoisyVote.noisy`."""
        return counts + discrete_laplace(noise, tuple(counts.shape), scale=scale)

    @classmethod
    def event(cls, scale: float) -> Release:
        """See `DiscreteLaplaceVotes`."""
        return DiscreteLaplaceVotes(scale)

    @classmethod
    def words(cls, scale: float) -> str:
        """See `NoisyVote.words`."""
        return f"discrete Laplace noise of scale {scale:g}"


class GaussianVote(NoisyVote):
    """counts + N(0, σ²): GNMax, which DGD calls DGD+."""

    name = "gaussian"
    source = "Gaussian mechanism on counts that move by sqrt(2) (Papernot et al. 2018); exact composition"
    published_source = "Papernot et al. 2018, Proposition 8 (RDP of noisy votes), taken by DGD for DGD+; without eps1"
    data_dependent = True

    @classmethod
    def noisy(cls, counts: torch.Tensor, *, scale: float, noise: NoiseSource) -> torch.Tensor:
        """See `NoisyVote.noisy`."""
        return counts.double() + scale * noise.gaussian(tuple(counts.shape))

    @classmethod
    def event(cls, scale: float) -> Release:
        """μ = √2/σ."""
        return GaussianVotes(scale)

    @classmethod
    def claim(cls, scale: float, *, latent_epsilon: float | None) -> Claim:
        """RDP slope 1/σ²."""
        return RdpSlope(source=_GNMAX, slope=1.0 / scale**2)

    @classmethod
    def free_claim(cls) -> Claim:
        """See `NoisyVote.free_claim`."""
        return RdpSlope(source=_GNMAX, slope=0.0)

    @classmethod
    def words(cls, scale: float) -> str:
        """See `NoisyVote.words`."""
        return f"N(0, {scale:g}^2)"


class ConfidentVote(NoisyVote):
    """As `gaussian`, for queries whose largest count passes a noisy bar (Confident-GNMax)."""

    name = "confident"
    source = (
        "Gaussian mechanisms on the largest count (moves by 1) and on the counts (by sqrt(2)), Papernot et al. 2018; "
        "exact composition of all checks and of the most responses that were allowed before the first"
    )
    published_source = GaussianVote.published_source
    data_dependent = GaussianVote.data_dependent

    # Counts that pass are noised and charged as those of `gaussian`.
    noisy = GaussianVote.noisy
    event = GaussianVote.event
    claim = GaussianVote.claim
    free_claim = GaussianVote.free_claim
    words = GaussianVote.words

    @classmethod
    def check_claim(cls, threshold_scale: float) -> RdpSlope:
        """What Papernot et al. count for one check."""
        return RdpSlope(source=_GNMAX, slope=0.5 / threshold_scale**2)


VOTE_MECHANISMS: dict[str, type[NoisyVote]] = {
    kind.name: kind for kind in (LaplaceVote, DiscreteLaplaceVote, GaussianVote, ConfidentVote)
}
"""Every noise whose cost is known."""


def vote_mechanism(name: str) -> type[NoisyVote]:
    """The mechanism with this name.

    Raises:
        ValueError: The cost of such votes is unknown.
    """
    if name not in VOTE_MECHANISMS:
        raise ValueError(f"mechanism must be one of {', '.join(VOTE_MECHANISMS)}, got {name!r}")
    return VOTE_MECHANISMS[name]
