"""Noisy votes of an ensemble on disjoint shards (DGD; Papernot et al. 2017, 2018). One record moves two counts by 1."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from privacy.mechanisms.noise import NoiseSource
from privacy.mechanisms.votes import vote_mechanism

__all__ = ["REJECTED", "VoteNoise", "confident_votes", "noisy_votes", "vote_counts"]

VoteNoise = Literal["laplace", "discrete_laplace", "gaussian"]

REJECTED = -1
"""Response to a query on which the teachers do not agree enough."""


def vote_counts(decisions: torch.Tensor, *, num_classes: int) -> torch.Tensor:
    """Votes per class.

    Args:
        decisions: Each teacher's decision on each query, shape (n, N), int64.
        num_classes: c.

    Returns:
        Shape (N, c), int64, rows sum to n.

    Raises:
        ValueError: Not two-dimensional, or a decision outside [0, c): a broken teacher must still give one fixed vote.
    """
    if decisions.ndim != 2:
        raise ValueError(f"decisions must have the shape (teachers, queries), got {tuple(decisions.shape)}")
    if decisions.numel() and (int(decisions.min()) < 0 or int(decisions.max()) >= num_classes):
        raise ValueError(
            f"decisions must lie in [0, {num_classes}), got {int(decisions.min())} to {int(decisions.max())}"
        )
    return torch.nn.functional.one_hot(decisions, num_classes).sum(dim=0)


def noisy_votes(counts: torch.Tensor, *, kind: VoteNoise, scale: float, noise: NoiseSource) -> torch.Tensor:
    """argmax(counts + noise) for each query.

    `laplace` with scale b = 2/ε₀ is DGD Eq. 3 (`LaplaceVotes`); `discrete_laplace` is the same on the integers, without
    floating-point low bits, and costs a little more (`DiscreteLaplaceVotes`); `gaussian` is GNMax (`GaussianVotes`),
    which DGD calls DGD+.

    Args:
        counts: Shape (N, c), int64. **Private.**
        kind: The noise.
        scale: b, or σ.
        noise: Where randomness comes from.

    Returns:
        Labels, shape (N,), int64, on the device of `counts`. Ties go to the lowest class, which reveals nothing more.

    Raises:
        ValueError: Counts that are not (N, c) integers, a scale that is not positive and finite, or an unknown kind.
    """
    _check_counts(counts)
    _positive("scale", scale)
    if kind not in get_args(VoteNoise):
        raise ValueError(f"kind must be laplace, discrete_laplace or gaussian, got {kind!r}")
    noisy = vote_mechanism(kind).noisy(counts.detach().cpu(), scale=scale, noise=noise)
    return noisy.argmax(dim=1).to(counts.device)


def confident_votes(
    counts: torch.Tensor, *, threshold: float, threshold_std: float, noise_std: float, noise: NoiseSource
) -> torch.Tensor:
    """Confident-GNMax (Papernot et al. 2018, Algorithm 1): answers only where the largest count passes a noisy bar.

    Every check costs `ThresholdCheck(threshold_std)`, rejected ones too, and every response `GaussianVotes(noise_std)`
    on top. How many responses there will be depends on the private data: charge under a budget that was fixed before.

    Args:
        counts: Shape (N, c), int64. **Private.**
        threshold: T, in votes.
        threshold_std: σ₁.
        noise_std: σ₂.
        noise: Where randomness comes from.

    Returns:
        Labels, shape (N,), int64; `REJECTED` (-1) where nothing is answered.

    Raises:
        ValueError: Counts that are not (N, c) integers, a standard deviation that is not positive and finite, or a
            threshold that is not finite.
    """
    _check_counts(counts)
    if not math.isfinite(threshold):
        raise ValueError(f"threshold must be finite, got {threshold}")
    _positive("threshold_std", threshold_std)
    _positive("noise_std", noise_std)
    passed = counts.detach().cpu().amax(dim=1).double() + threshold_std * noise.gaussian((len(counts),)) >= threshold
    labels = noisy_votes(counts, kind="gaussian", scale=noise_std, noise=noise).cpu()
    return torch.where(passed, labels, torch.full_like(labels, REJECTED)).to(counts.device)


def _check_counts(counts: torch.Tensor) -> None:
    # Fractional counts would carry more than a vote each, and low bits past discrete noise.
    if counts.ndim != 2 or counts.shape[1] < 1 or counts.is_floating_point() or counts.dtype == torch.bool:
        raise ValueError(f"counts must be integers of shape (N, c), got {counts.dtype} of shape {tuple(counts.shape)}")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}")
