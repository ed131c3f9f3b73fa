"""Release of noised output gradients: for each way its noise scale, sensitivity, cost and description.

Every way starts from gradients ḡ that a `GradientBounding` has bounded by C, each sample's or the whole batch's, and
adds Gaussian noise. A teacher that was not trained privately may change *every* gradient because of one record; in an
ensemble on disjoint shards, one teacher's gradient on each image. The bounding says how far that moves the batch Ḡ:

| bounded | ‖ΔḠ‖_F at most | ‖ΔΣ_i ḡ_i‖₂ at most |
|---|---|---|
| each sample | 2C√B | 2CB |
| the whole batch | 2C | 2C√B |

C cancels in μ, which is the L2 distance that one record moves what is noised, divided by the standard deviation of the
noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from privacy.checks import check_count, check_positive
from privacy.mechanisms.gradient_bounding import GradientBounding, gradient_bounding

__all__ = ["GRADIENT_MECHANISMS", "AddNoise", "GradientMechanism", "gradient_mechanism", "output_gradient_mu"]

AddNoise = Callable[[torch.Tensor, float], torch.Tensor]
"""Adds noise of a standard deviation to values of any shape, in float64."""


class GradientMechanism(ABC):
    """One way to release a batch of bounded output gradients.

    Attributes:
        words: What is released, for a reader; `{std:.4g}` stands for the noise's standard deviation in units of C.
        of_ensemble: Whether it takes the gradients of many teachers on disjoint shards.
    """

    words: ClassVar[str]
    of_ensemble: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def mu(cls, batch_size: int, noise_multiplier: float, *, bounding: GradientBounding) -> float:
        """μ of one call on B samples: what one record moves, over the standard deviation of the noise.

        Args:
            batch_size: B.
            noise_multiplier: σ.
            bounding: How the gradients were bounded.
        """

    @classmethod
    def noise_std(cls, batch_size: int, noise_multiplier: float) -> float:
        """Standard deviation of the noise on each coordinate of what is noised, in units of C."""
        return noise_multiplier

    @classmethod
    def release(cls, rows: torch.Tensor, *, noise_std: float, add_noise: AddNoise) -> torch.Tensor:
        """Adds noise to bounded gradients.

        Args:
            rows: Bounded, shape (n, B, c), float64; n is 1 unless `of_ensemble`.
            noise_std: `noise_std` times C.
            add_noise: Draws the noise.

        Returns:
            Shape (B, c), float64.
        """
        return add_noise(rows[0], noise_std)


class PerSample(GradientMechanism):
    """ḡ_i + N(0, (σC/B)² I) for each sample: what the accuracies of DPDFD and DPSD need."""

    words = "each sample with Gaussian noise of standard deviation sigma*C/B = {std:.4g}*C per coordinate"

    @classmethod
    def mu(cls, batch_size: int, noise_multiplier: float, *, bounding: GradientBounding) -> float:
        """Ḡ moves by 2C√B, or 2C where it is bounded as a whole, against σC/B: √B·2B/σ, or 2B/σ."""
        return bounding.norm_of_batch(batch_size) * 2.0 * batch_size / noise_multiplier

    @classmethod
    def noise_std(cls, batch_size: int, noise_multiplier: float) -> float:
        """σ/B."""
        return noise_multiplier / batch_size


class PerSampleFull(GradientMechanism):
    """ḡ_i + N(0, σ²C² I) for each sample: DPSD Algorithm 1."""

    words = "each sample with Gaussian noise of standard deviation sigma*C = {std:.4g}*C per coordinate"

    @classmethod
    def mu(cls, batch_size: int, noise_multiplier: float, *, bounding: GradientBounding) -> float:
        """Ḡ moves by 2C√B, or 2C where it is bounded as a whole, against σC: √B·2/σ, or 2/σ."""
        return bounding.norm_of_batch(batch_size) * 2.0 / noise_multiplier


class BatchMean(GradientMechanism):
    """(1/B)(Σ ḡ_i + N(0, σ²C² I)), one vector for the batch: DPDFD Algorithm 1 as printed. It distils nothing."""

    words = "the batch mean with Gaussian noise of standard deviation sigma*C/B per coordinate"

    @classmethod
    def mu(cls, batch_size: int, noise_multiplier: float, *, bounding: GradientBounding) -> float:
        """The sum moves by 2BC, or 2C√B where the batch is bounded as a whole, against σC: 2B/σ, or √B·2/σ."""
        return 2.0 * bounding.norm_of_sum(batch_size) / noise_multiplier

    @classmethod
    def release(cls, rows: torch.Tensor, *, noise_std: float, add_noise: AddNoise) -> torch.Tensor:
        """See `GradientMechanism.release`; all samples are equal."""
        batch = rows.shape[1]
        return (add_noise(rows[0].sum(dim=0), noise_std) / batch).repeat(batch, 1)


class BatchMeanRows(PerSampleFull):
    """(1/B)Σ(ḡ_i + N(0, σ²C² I)), one vector for the batch: DPSD Eq. 3 as printed. It distils nothing.

    Its μ is that of `PerSampleFull`, whose release this is the mean of. Nothing is lost by that: the sum of the samples
    moves by √B times as much as Ḡ does, against noise of σC√B.
    """

    words = "the batch mean of samples, each with Gaussian noise of standard deviation sigma*C per coordinate"

    @classmethod
    def release(cls, rows: torch.Tensor, *, noise_std: float, add_noise: AddNoise) -> torch.Tensor:
        """See `GradientMechanism.release`; all samples are equal."""
        return add_noise(rows[0], noise_std).mean(dim=0, keepdim=True).repeat(rows.shape[1], 1)


class EnsembleSum(PerSampleFull):
    """(1/n)(Σ_j ḡ_ij + N(0, σ²C² I)) for each sample, over n teachers on disjoint shards: Algorithms 2.

    One teacher's Ḡ_j moves, as that of the only teacher does in `PerSampleFull`, and the sum over teachers by as much:
    the same μ. Each teacher's gradients are bounded separately.
    """

    words = (
        "the sum over all teachers with Gaussian noise of standard deviation sigma*C = {std:.4g}*C per coordinate, "
        "divided by n"
    )
    of_ensemble = True

    @classmethod
    def release(cls, rows: torch.Tensor, *, noise_std: float, add_noise: AddNoise) -> torch.Tensor:
        """See `GradientMechanism.release`."""
        return add_noise(rows.sum(dim=0), noise_std) / len(rows)


GRADIENT_MECHANISMS: dict[str, type[GradientMechanism]] = {
    "per_sample": PerSample,
    "per_sample_full": PerSampleFull,
    "batch_mean": BatchMean,
    "batch_mean_rows": BatchMeanRows,
    "ensemble": EnsembleSum,
}
"""Every way whose cost is known."""


def gradient_mechanism(name: str) -> type[GradientMechanism]:
    """The mechanism with this name.

    Raises:
        ValueError: The cost of such a mechanism is unknown: it must not be charged as if it were another.
    """
    if name not in GRADIENT_MECHANISMS:
        raise ValueError(f"release must be one of {', '.join(GRADIENT_MECHANISMS)}, got {name!r}")
    return GRADIENT_MECHANISMS[name]


def output_gradient_mu(release: str, batch_size: int, noise_multiplier: float, *, bounding: str = "normalize") -> float:
    """μ of one call on output gradients under record-level neighbours (DPDFD Algorithms 1, 2; DPSD Eq. 3, Algorithm 2).

    Args:
        release: Name of the mechanism.
        batch_size: B.
        noise_multiplier: σ.
        bounding: Name of the bounding.

    Raises:
        ValueError: An unknown mechanism or bounding, or numbers out of range.

    >>> output_gradient_mu("batch_mean", 256, 100.0), output_gradient_mu("ensemble", 256, 100.0)
    (5.12, 0.32)
    >>> output_gradient_mu("batch_mean", 256, 100.0, bounding="normalize_batch")
    0.32
    """
    rows = check_count("batch_size", batch_size, minimum=1)
    sigma = check_positive("noise_multiplier", noise_multiplier)
    return gradient_mechanism(release).mu(rows, sigma, bounding=gradient_bounding(bounding))
