"""How output gradients are bounded: one object for each way, with what it bounds jointly and the resulting bound.

A record may change the teacher, and so a whole batch G of gradients, in whatever way. What it can move is the distance
of two *bounded* batches, whatever G was: each way states the largest norms that it leaves, and a distance is at most
twice such a norm (triangle inequality), which is reached where the record reverses the batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from privacy.mechanisms.bounding import clip_per_sample, normalize_per_sample

__all__ = ["GRADIENT_BOUNDINGS", "Clip", "GradientBounding", "Normalize", "NormalizeBatch", "gradient_bounding"]


class GradientBounding(ABC):
    """One way to bound the gradients of a batch, shape (B, c).

    Attributes:
        name: What the setting `bounding` calls it.
        words: What is done, for a reader; `{C}` stands for the bound.
    """

    name: ClassVar[str]
    words: ClassVar[str]

    @classmethod
    @abstractmethod
    def norm_of_batch(cls, batch_size: int) -> float:
        """Largest Frobenius norm of a bounded batch, in units of C."""

    @classmethod
    @abstractmethod
    def norm_of_sum(cls, batch_size: int) -> float:
        """Largest L2 norm of the sum of a bounded batch's samples, in units of C."""

    @classmethod
    @abstractmethod
    def moved(cls, *, of_ensemble: bool) -> str:
        """What one record moves by up to 2C, for a reader."""

    @classmethod
    @abstractmethod
    def grouped(cls, rows: torch.Tensor, *, batch_size: int) -> torch.Tensor:
        """Gradients (n·B, c) of n teachers on B samples, one row for what is bounded jointly: (N, d)."""

    @classmethod
    @abstractmethod
    def bound(cls, groups: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        """Rows of norm C at most.

        Args:
            groups: What `grouped` gave, finite.
            norm_bound: C.
            stability: e.

        Returns:
            The shape of `groups`, float64.
        """


class _PerSample(GradientBounding):
    """Each sample's gradient has norm C at most, whatever the others are."""

    @classmethod
    def norm_of_batch(cls, batch_size: int) -> float:
        """√B: B samples of norm 1."""
        return math.sqrt(batch_size)

    @classmethod
    def norm_of_sum(cls, batch_size: int) -> float:
        """B: all samples in one direction."""
        return float(batch_size)

    @classmethod
    def moved(cls, *, of_ensemble: bool) -> str:
        """See `GradientBounding.moved`."""
        return "one gradient on each image" if of_ensemble else "every gradient"

    @classmethod
    def grouped(cls, rows: torch.Tensor, *, batch_size: int) -> torch.Tensor:
        """Samples as they are, (n·B, c)."""
        return rows


class Normalize(_PerSample):
    """C·g_i/(‖g_i‖₂ + e) for each sample: DPDFD Algorithm 1 line 7 and DPSD Eq. 3, read sample by sample."""

    name = "normalize"
    words = "normalised to C={C:g} per sample"

    @classmethod
    def bound(cls, groups: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        """See `normalize_per_sample`."""
        return normalize_per_sample(groups, norm_bound=norm_bound, stability=stability)


class Clip(_PerSample):
    """g_i·min(1, C/‖g_i‖₂) for each sample: what DPDFD's Fig. 2 and DPSD's Fig. 5 compare with."""

    name = "clip"
    words = "clipped to C={C:g} per sample"

    @classmethod
    def bound(cls, groups: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        """See `clip_per_sample`."""
        return clip_per_sample(groups, norm_bound=norm_bound)


class NormalizeBatch(GradientBounding):
    """C·G/(‖G‖_F + e) for the batch as a whole: a norm without the index of the sample, as DPSD's Eq. 3 prints it.

    Of DPDFD's line 7 and Eq. 4 one copy prints ‖g‖₂, the other ‖g_i‖₂ (and ‖g‖₂ in Algorithms 2 and 3).

    One record may change all of G, but whatever it does the batch stays in one ball of radius C: it moves by 2C at
    most, and not by 2C√B. Each teacher of an ensemble is bounded by itself, so that a record moves its own teacher's
    batch by 2C and no other's.
    """

    name = "normalize_batch"
    words = "normalised to C={C:g} for the whole batch, by its Frobenius norm"

    @classmethod
    def norm_of_batch(cls, batch_size: int) -> float:
        """1."""
        return 1.0

    @classmethod
    def norm_of_sum(cls, batch_size: int) -> float:
        """√B: ‖Σ_i ḡ_i‖₂ = ‖1ᵀḠ‖₂ ≤ ‖1‖₂·‖Ḡ‖_F, reached where all samples are equal."""
        return math.sqrt(batch_size)

    @classmethod
    def moved(cls, *, of_ensemble: bool) -> str:
        """See `GradientBounding.moved`."""
        return f"{'one' if of_ensemble else 'the'} teacher's whole batch of gradients (in Frobenius norm)"

    @classmethod
    def grouped(cls, rows: torch.Tensor, *, batch_size: int) -> torch.Tensor:
        """The batch of each teacher as one vector, (n, B·c): its L2 norm is the Frobenius norm."""
        return rows.reshape(-1, batch_size * rows.shape[-1])

    @classmethod
    def bound(cls, groups: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        """See `normalize_per_sample`, for which a batch is one sample."""
        return normalize_per_sample(groups, norm_bound=norm_bound, stability=stability)


GRADIENT_BOUNDINGS: dict[str, type[GradientBounding]] = {kind.name: kind for kind in (Normalize, Clip, NormalizeBatch)}
"""Every way whose sensitivity is known."""


def gradient_bounding(name: str) -> type[GradientBounding]:
    """The bounding with this name.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in GRADIENT_BOUNDINGS:
        raise ValueError(f"bounding must be one of {', '.join(GRADIENT_BOUNDINGS)}, got {name!r}")
    return GRADIENT_BOUNDINGS[name]
