"""Ways of releasing noised output gradients: noise scale, sensitivity, cost and description of each.

Each starts from gradients ḡ that a `GradientBounding` has bounded by C, per sample or as a whole batch, and adds
Gaussian noise. One record may change *every* gradient of a teacher that was not trained privately, or one teacher's
gradient on each image in an ensemble on disjoint shards. The bounding limits how far that moves the batch Ḡ:

| bounded | ‖ΔḠ‖_F at most | ‖ΔΣ_i ḡ_i‖₂ at most |
|---|---|---|
| each sample | 2C√B | 2CB |
| the whole batch | 2C | 2C√B |

C cancels in μ, the L2 distance by which one record moves the noised values, over the noise's standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy.checks import check_count, check_positive, look_up
from privacy.mechanisms.gradient_bounding import GRADIENT_BOUNDINGS, GradientBounding


@dataclass(frozen=True, kw_only=True)
class GradientRelease:
    """One way to release a batch of bounded output gradients.

    Attributes:
        words: What is released, for a reader; `{std:.4g}` stands for the noise's standard deviation in units of C.
        of_sum: Whether the sum of the samples' gradients is noised; otherwise each sample's gradient.
        divided: Whether the noise has standard deviation σC/B; otherwise σC.
        of_ensemble: Whether the gradients are those of many teachers on disjoint shards.
        averaged: Whether the mean over noised samples is released.
    """

    words: str
    of_sum: bool = False
    divided: bool = False
    of_ensemble: bool = False
    averaged: bool = False

    def mu(self, batch_size: int, noise_multiplier: float, *, bounding: GradientBounding) -> float:
        """μ of one call on B samples at σ: how far one record moves them, over the noise's standard deviation.

        | noise | on | each sample bounded | the whole batch |
        |---|---|---|---|
        | σC/B | each sample | √B·2B/σ | 2B/σ |
        | σC | each sample | √B·2/σ | 2/σ |
        | σC | the sum | 2B/σ | √B·2/σ |
        """
        norm = bounding.norm_of_sum(batch_size) if self.of_sum else bounding.norm_of_batch(batch_size)
        return norm * 2.0 * (batch_size if self.divided else 1) / noise_multiplier

    def noise_std(self, batch_size: int, noise_multiplier: float) -> float:
        """Standard deviation of the noise on each noised coordinate, in units of C."""
        return noise_multiplier / batch_size if self.divided else noise_multiplier


GRADIENT_RELEASES: dict[str, GradientRelease] = {
    # ḡ_i + N(0, (σC/B)² I) for each sample: what the accuracies of DPDFD and DPSD need.
    "per_sample": GradientRelease(
        words="each sample with Gaussian noise of standard deviation sigma*C/B = {std:.4g}*C per coordinate",
        divided=True,
    ),
    # ḡ_i + N(0, σ²C² I) for each sample: the summand of DPSD Eq. 3, without its mean.
    "per_sample_full": GradientRelease(
        words="each sample with Gaussian noise of standard deviation sigma*C = {std:.4g}*C per coordinate",
    ),
    # (1/B)(Σ ḡ_i + N(0, σ²C² I)), one vector for the batch: DPDFD Algorithm 1 as printed. It distils nothing.
    "batch_mean": GradientRelease(
        words="the batch mean with Gaussian noise of standard deviation sigma*C/B per coordinate",
        of_sum=True,
    ),
    # (1/B)Σ(ḡ_i + N(0, σ²C² I)), one vector for the batch: DPSD Eq. 3 as printed. It distils nothing. It is the mean of
    # what `per_sample_full` releases, at the same μ, which is tight: the sum of the samples moves by up to √B times as
    # much as Ḡ, against noise of σC√B.
    "batch_mean_rows": GradientRelease(
        words="the batch mean of samples, each with Gaussian noise of standard deviation sigma*C per coordinate",
        averaged=True,
    ),
    # (1/n)(Σ_j ḡ_ij + N(0, σ²C² I)) for each sample, over n teachers on disjoint shards: Algorithm 2 of both papers.
    # Only one teacher's Ḡ_j moves, as in `per_sample_full`, and the sum over teachers by as much: the same μ. Each
    # teacher's gradients are bounded separately.
    "ensemble": GradientRelease(
        words=(
            "the sum over all teachers with Gaussian noise of standard deviation sigma*C = {std:.4g}*C per coordinate, "
            "divided by n"
        ),
        of_ensemble=True,
    ),
}
"""All ways whose cost is known."""


def output_gradient_mu(release: str, batch_size: int, noise_multiplier: float, *, bounding: str = "normalize") -> float:
    """μ of one call on output gradients under record-level neighbours (DPDFD Algorithms 1, 2; DPSD Eq. 3, Algorithm 2).

    For B samples at σ; `release` and `bounding` are names in `GRADIENT_RELEASES` and `GRADIENT_BOUNDINGS`.

    Raises:
        ValueError: An unknown mechanism or bounding, or numbers out of range.

    >>> output_gradient_mu("batch_mean", 256, 100.0), output_gradient_mu("ensemble", 256, 100.0)
    (5.12, 0.32)
    >>> output_gradient_mu("batch_mean", 256, 100.0, bounding="normalize_batch")
    0.32
    """
    rows = check_count("batch_size", batch_size, minimum=1)
    sigma = check_positive("noise_multiplier", noise_multiplier)
    bounded = look_up("bounding", bounding, GRADIENT_BOUNDINGS)
    return look_up("release", release, GRADIENT_RELEASES).mu(rows, sigma, bounding=bounded)
