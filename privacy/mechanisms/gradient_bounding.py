"""Ways of bounding output gradients: what each bounds jointly, and the resulting norms.

A record may change the teacher, and so a whole batch G of gradients, arbitrarily. Its effect is the distance of two
*bounded* batches: each way states the largest norm that it leaves, and a distance is at most twice that norm (triangle
inequality), which is reached if the record reverses the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from privacy.mechanisms.bounding import clip_per_sample, normalize_per_sample


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

    def norm_of_batch(self, batch_size: int) -> float:
        """Largest Frobenius norm of a bounded batch, in units of C: √B for B samples of norm 1, or 1 for the whole."""
        return 1.0 if self.whole_batch else math.sqrt(batch_size)

    def norm_of_sum(self, batch_size: int) -> float:
        """Largest L2 norm of the sum of a bounded batch's samples, in units of C.

        B, if all samples point in one direction. √B for the whole batch: ‖Σ_i ḡ_i‖₂ = ‖1ᵀḠ‖₂ ≤ ‖1‖₂·‖Ḡ‖_F, reached if
        all samples are equal.
        """
        return math.sqrt(batch_size) if self.whole_batch else float(batch_size)

    def moved(self, *, of_ensemble: bool) -> str:
        """What one record moves by up to 2C, for a reader."""
        if self.whole_batch:
            return f"{'one' if of_ensemble else 'the'} teacher's whole batch of gradients (in Frobenius norm)"
        return "one gradient on each image" if of_ensemble else "every gradient"

    def grouped(self, rows: torch.Tensor, *, batch_size: int) -> torch.Tensor:
        """Gradients (n·B, c) of n teachers, one row per group that is bounded jointly: (n·B, c) or (n, B·c)."""
        return rows.reshape(-1, batch_size * rows.shape[-1]) if self.whole_batch else rows

    def bound(self, groups: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        """Finite rows, as `grouped` gives them, bounded to norm C = `norm_bound` with e = `stability`, in float64."""
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
