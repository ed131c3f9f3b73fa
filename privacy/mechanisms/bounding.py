"""Bounding of private per-sample values before noise is added, and how far one record then moves a batch of gradients.

A record may change the teacher, and so a whole batch G of gradients, arbitrarily. Its effect is the distance of two
*bounded* batches: each way states the largest norm that it leaves, and a distance is at most twice that norm (triangle
inequality), which is reached if the record reverses the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


def zero_non_finite_samples(rows: torch.Tensor) -> torch.Tensor:
    """Replaces every sample of (B, c) that contains a NaN or an infinity by zeros, in float64.

    A broken teacher output must neither stop the run nor look different from a working one: a neighbouring data set
    might not have stopped it. The sample is noised and charged like any other.
    """
    rows = rows.detach().to(torch.float64)
    finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    return torch.where(finite, rows, torch.zeros_like(rows))


def keep_largest(rows: torch.Tensor, *, k: int) -> torch.Tensor:
    """Returns samples (B, c) with all but the k entries of largest magnitude set to zero (DPSD's M_k, on gradients).

    By magnitude, since the largest signed values would leave out the teacher's class, whose entry is negative. k is
    from 1 to c.
    """
    largest = rows.abs().topk(k, dim=1).indices
    return torch.zeros_like(rows).scatter_(1, largest, rows.gather(1, largest))


def normalize_per_sample(rows: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
    """DPDFD Algorithm 1 line 7: C·g/(‖g‖₂ + e) for each of the finite samples (B, c), in float64.

    C is `norm_bound`, which no norm exceeds; e is `stability`, at least 0. A zero sample stays zero, even for e = 0. In
    bfloat16 norms of 1.0067 C were measured, which would break the sensitivity.
    """
    peak, unit, length = _scaled(rows.detach().to(torch.float64))
    # C·g/(‖g‖ + e) with both parts divided by the largest entry, so that nothing overflows or vanishes.
    return _at_most(norm_bound * unit / (length + stability / peak), norm_bound)


def clip_per_sample(rows: torch.Tensor, *, norm_bound: float) -> torch.Tensor:
    """Finite samples (B, c) clipped to norms of at most C = `norm_bound`, in float64: g·min(1, C/‖g‖₂).

    The alternative that DPDFD's Fig. 2 compares with.
    """
    return _at_most(rows.detach().to(torch.float64), norm_bound)


def _scaled(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Largest entry, samples divided by it, and their norms (1 for a zero sample): none can overflow."""
    peak = rows.abs().amax(dim=1, keepdim=True)
    # Subnormal samples count as zero: torch divides by them through their reciprocals, which would be infinite.
    usable = peak > torch.finfo(torch.float64).tiny
    peak = torch.where(usable, peak, torch.ones_like(peak))
    unit = torch.where(usable, rows / peak, torch.zeros_like(rows))
    return peak, unit, unit.norm(dim=1, keepdim=True).clamp_min(1.0)


def _at_most(rows: torch.Tensor, norm_bound: float) -> torch.Tensor:
    # Rounding may leave a norm some units in the last place above the bound; the margin makes up for it. The relative
    # error of a measured norm is up to 2^-53 per column, which matters in batches that are bounded jointly.
    limit = norm_bound * (1.0 - max(1e-12, (rows.shape[1] + 8) * 2.0**-52))
    peak, unit, length = _scaled(rows)
    return torch.where(peak * length > limit, limit * unit / length, rows)


@dataclass(frozen=True, kw_only=True)
class GradientBounding:
    """One way to bound the gradients of a batch, shape (B, c).

    Attributes:
        words: What is done, for a reader; `{C}` stands for the bound.
        clips: Whether only norms above C are clipped to C; otherwise all are normalised to it.
        whole_batch: Whether a teacher's batch is bounded as a whole, by its Frobenius norm; otherwise each sample's
            gradient is bounded by itself.
    """

    words: str
    clips: bool = False
    whole_batch: bool = False

    def bound(self, groups: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        """Finite rows, one per group that is bounded jointly, bounded to norm C = `norm_bound`, in float64."""
        if self.clips:
            return clip_per_sample(groups, norm_bound=norm_bound)
        return normalize_per_sample(groups, norm_bound=norm_bound, stability=stability)


GRADIENT_BOUNDINGS: dict[str, GradientBounding] = {
    # C·g_i/(‖g_i‖₂ + e) for each sample: DPDFD Algorithm 1 line 7 and DPSD Eq. 3, read sample by sample.
    "normalize": GradientBounding(words="normalised to C={C:g} per sample"),
    # g_i·min(1, C/‖g_i‖₂) for each sample: what DPDFD's Fig. 2 and DPSD's Fig. 5 compare with.
    "clip": GradientBounding(words="clipped to C={C:g} per sample", clips=True),
    # C·G/(‖G‖_F + e) for the batch as a whole: a norm without a sample index, as DPSD's Eq. 3 prints it. For DPDFD's
    # line 7 and Eq. 4 one copy prints ‖g‖₂, the other ‖g_i‖₂ (and ‖g‖₂ in Algorithms 2 and 3). One record may change
    # all of G, but the batch stays in one ball of radius C: it moves by at most 2C, and not by 2C√B. Each teacher of an
    # ensemble is bounded by itself, so that a record does not move another teacher's batch.
    "normalize_batch": GradientBounding(
        words="normalised to C={C:g} for the whole batch, by its Frobenius norm", whole_batch=True
    ),
}
"""All ways whose sensitivity is known."""
