"""DPDFD Eq. 4 and DPSD Eq. 3: bounded, noised gradients of the loss with respect to the student's outputs.

Each `GradientRelease` starts from gradients ḡ that a `GradientBounding` has bounded by C, per sample or as a whole
batch, and adds Gaussian noise. One record may change *every* gradient of a teacher that was not trained privately, or
one teacher's gradient on each image in an ensemble on disjoint shards. The bounding limits how far that moves the batch
Ḡ:

| bounded | ‖ΔḠ‖_F at most | ‖ΔΣ_i ḡ_i‖₂ at most |
|---|---|---|
| each sample | 2C√B | 2CB |
| the whole batch | 2C | 2C√B |

C cancels in μ, the L2 distance by which one record moves the noised values, over the noise's standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import torch

from privacy.checks import check_count, check_number, look_up
from privacy.events import Gaussian
from privacy.mechanisms.base import FLOATS, Description, Mechanism, Shape, of_shards, require_shape
from privacy.mechanisms.bounding import GRADIENT_BOUNDINGS, GradientBounding, keep_largest, zero_non_finite_samples
from privacy.plan import Charge
from privacy.published import Claim, RdpSlope, dpdfd_rdp_slope


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

    For B samples at σ; `release` and `bounding` are names in `GRADIENT_RELEASES` and `GRADIENT_BOUNDINGS`. μ is how
    far one record moves what is noised, over the noise's standard deviation.

    A bounded batch has a Frobenius norm of at most √B·C, or C for the whole. The sum of its samples has a norm of at
    most B·C, if all point in one direction, or √B·C for the whole: ‖Σ_i ḡ_i‖₂ = ‖1ᵀḠ‖₂ ≤ ‖1‖₂·‖Ḡ‖_F, reached if all are
    equal.

    | noise | on | each sample bounded | the whole batch |
    |---|---|---|---|
    | σC/B | each sample | √B·2B/σ | 2B/σ |
    | σC | each sample | √B·2/σ | 2/σ |
    | σC | the sum | 2B/σ | √B·2/σ |

    Raises:
        ValueError: An unknown mechanism or bounding, or numbers out of range.

    >>> output_gradient_mu("batch_mean", 256, 100.0), output_gradient_mu("ensemble", 256, 100.0)
    (5.12, 0.32)
    >>> output_gradient_mu("batch_mean", 256, 100.0, bounding="normalize_batch")
    0.32
    """
    way, rows = look_up("release", release, GRADIENT_RELEASES), check_count("batch_size", batch_size, minimum=1)
    sigma = check_number("noise_multiplier", noise_multiplier, above=0)
    of_samples, of_whole = (float(rows), math.sqrt(rows)) if way.of_sum else (math.sqrt(rows), 1.0)
    norm = of_whole if look_up("bounding", bounding, GRADIENT_BOUNDINGS).whole_batch else of_samples
    return norm * 2.0 * (rows if way.divided else 1) / sigma


_SMALLEST, _LARGEST = 1e-30, 1e30

GradientReleases = Literal["per_sample", "per_sample_full", "batch_mean", "batch_mean_rows", "ensemble"]
GradientBoundings = Literal["normalize", "clip", "normalize_batch"]

THEOREMS = {
    "DPDFD Theorem 3": "DPDFD (Liu et al. 2023, arXiv:2304.12528), Theorem 3",
    "DPSD Theorem 1": "DPSD (Liu et al., differentially private synthetic distillation), Theorem 1",
}
"""Theorems of published figures: short names, as in stored claims, and full references."""


@dataclass(frozen=True, kw_only=True)
class NoisyGradients(Mechanism):
    """DPDFD Eq. 4, DPSD Eq. 3: bounded gradients of the loss w.r.t. the student's outputs, plus Gaussian noise.

    Per sample, ḡ_i = C·g_i/(‖g_i‖₂ + e) (or clipped to C). One private record may change the teacher, hence **every**
    gradient of every batch, each by up to 2C: neighbours differ in one record (zero-out; replace-one and add-or-remove
    follow). With `bounding: normalize_batch` Ḡ = C·G/(‖G‖_F + e), and all gradients of the batch together move by up to
    2C.

    `GRADIENT_RELEASES` has each `release`, and how its cost follows from what is bounded.
    `batch_mean` and `batch_mean_rows` carry no label of any image and distil nothing. For `ensemble` one record changes
    one teacher, whose gradients move by as much as those of a single teacher; all others stay equal to the last bit.

    The theorem of the published figure (DPDFD's Theorem 3, DPSD's Theorem 1) counts the same for all of them.

    Attributes:
        release: `per_sample` (what the papers' accuracies need), `per_sample_full`, `batch_mean` (DPDFD Algorithm 1 as
            printed), `batch_mean_rows` (DPSD Eq. 3 as printed), or `ensemble` (n teachers, DPDFD Algorithm 2).
        top_k: Number k of entries of largest magnitude that are kept of each gradient, before it is bounded (DPSD's
            M_k); null keeps all. Which ones depends on the teacher, so the noise still goes on **all** coordinates.
        bounding: `normalize` or `clip` each sample's gradient to C; or `normalize_batch`, the whole batch of one
            teacher by its Frobenius norm, as the papers' ‖g‖₂ without an index may be read, which costs less and leaves
            each sample's gradient a norm of about C/√B.
        norm_bound: C.
        noise_multiplier: σ. Zero releases the gradients themselves: both ε are infinite.
        stability: e.
    """

    samples: ClassVar[int] = -2

    release: GradientReleases = "per_sample"
    top_k: int | None = None
    bounding: GradientBoundings = "normalize"
    norm_bound: float = 1e-3
    noise_multiplier: float = 100.0
    stability: float = 1e-4

    def __post_init__(self) -> None:
        look_up("release", self.release, GRADIENT_RELEASES)
        look_up("bounding", self.bounding, GRADIENT_BOUNDINGS)
        check_count("top_k", self.top_k, minimum=1, null="all entries")
        # Wide enough for any use, and narrow enough that nothing computed from them overflows or vanishes.
        check_number("norm_bound", self.norm_bound, least=_SMALLEST, most=_LARGEST)
        if self.noise_multiplier != 0:
            check_number("noise_multiplier, if not 0,", self.noise_multiplier, least=_SMALLEST, most=_LARGEST)
        check_number("stability", self.stability, least=0, most=_LARGEST)

    @cached_property
    def way(self) -> GradientRelease:
        """What is noised, and its cost."""
        return GRADIENT_RELEASES[self.release]

    @cached_property
    def bounded_by(self) -> GradientBounding:
        """What is bounded jointly."""
        return GRADIENT_BOUNDINGS[self.bounding]

    def require(self, shape: Shape) -> None:
        """See `Mechanism.require`: `top_k` must not exceed the number of classes."""
        super().require(shape)
        if self.top_k is not None and self.top_k > shape.num_classes:
            raise ValueError(f"top_k must be at most the number of classes {shape.num_classes}, got {self.top_k}")

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """DPSD does not count its teacher as a discriminator (DPSD-T); see `Mechanism`."""
        return RdpSlope(source=theorem(shape), slope=0.0) if shape.paper == "DPSD" else None

    @lru_cache(maxsize=8)  # noqa: B019 - a few small values
    def cost(self, shape: Shape) -> Charge:
        batch_size = shape.batch_size
        if not self.noise_multiplier:
            return Charge(release=Gaussian(mu=math.inf), queries=batch_size)
        mu = output_gradient_mu(self.release, batch_size, self.noise_multiplier, bounding=self.bounding)
        return Charge(release=Gaussian(mu=mu), claim=self.claim(shape), queries=batch_size)

    def claim(self, shape: Shape) -> Claim:
        """What the paper's theorem counts for one call with noise."""
        slope = dpdfd_rdp_slope(self.norm_bound, shape.num_classes, shape.batch_size, self.noise_multiplier)
        return RdpSlope(source=theorem(shape), slope=slope)

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        require_shape("gradients", tensors[0], shape, teachers=self.way.of_ensemble)
        return self.cost(shape), 1

    def answer(self, shape: Shape, *tensors: torch.Tensor, bounded: bool = False, **settings: Any) -> torch.Tensor:
        """Computed in float64 on the CPU: the batch is small, and sensitivity must not depend on rounding.

        Args:
            shape: See `Mechanism`.
            tensors: g, shape (B, c), gradients of each sample's own loss (not of the batch mean: those would be so
                small that `stability` swamps them). For `ensemble` g_ij of every teacher j, shape (n, B, c).
            settings: None.
            bounded: Whether clients of a federation have bounded them by C already. They are not trusted: what is
                longer is clipped, so that the cost holds for the others whatever one of them sent.

        Returns:
            Shape (B, c), with the dtype and device of the gradients. For `batch_mean` and `batch_mean_rows` all samples
            are equal.
        """
        (gradients,), way = tensors, self.way
        rows = self.bounded(gradients, batch_size=shape.batch_size, by=GRADIENT_BOUNDINGS["clip"] if bounded else None)
        values = rows.sum(dim=0) if way.of_ensemble or way.of_sum else rows
        std = way.noise_std(shape.batch_size, self.noise_multiplier) * self.norm_bound
        released = values + self.source.gaussian(values.shape) * std
        size = rows.shape[-2]
        if way.of_ensemble or way.of_sum:
            released = released / (len(rows) if way.of_ensemble else size)
        elif way.averaged:
            released = released.mean(dim=0)
        # The dtype first: not every device has float64.
        return released.expand(size, -1).contiguous().to(gradients.dtype).to(gradients.device)

    def bounded(self, gradients: torch.Tensor, *, batch_size: int, by: GradientBounding | None = None) -> torch.Tensor:
        """Gradients (..., B, c), masked, each sample or each teacher's whole batch bounded jointly, in float64."""
        rows = zero_non_finite_samples(gradients.cpu().flatten(0, -2))
        if self.top_k is not None:
            rows = keep_largest(rows, k=self.top_k)
        if self.bounded_by.whole_batch:  # one row for each teacher
            rows = rows.reshape(-1, batch_size * rows.shape[-1])
        rows = (by or self.bounded_by).bound(rows, norm_bound=self.norm_bound, stability=self.stability)
        return rows.view(gradients.shape)

    def words(self, shape: Shape) -> str:
        """How gradients are bounded and released, for a reader."""
        std = self.way.noise_std(shape.batch_size, self.noise_multiplier)
        masked = "" if self.top_k is None else f"their {self.top_k} largest entries kept, "
        words = self.way.words.format(std=std)
        return (
            f"{masked}{self.bounded_by.words.format(C=self.norm_bound)}, "
            f"{f'released as {words}' if self.noise_multiplier else 'released without noise'} "
            f"(sigma={self.noise_multiplier:g}, B={shape.batch_size}, release={self.release})"
        )

    def describe(self, shape: Shape) -> Description:
        many = self.way.of_ensemble
        moved = "one gradient on each image" if many else "every gradient"
        if self.bounded_by.whole_batch:
            moved = f"{'one' if many else 'the'} teacher's whole batch of gradients (in Frobenius norm)"
        return (of_shards if many else Description)(
            noise=FLOATS if self.noise_multiplier else "",
            mechanism=f"gradients of the distillation loss with respect to the student's outputs, {self.words(shape)}",
            source=(
                f"Gaussian mechanism, one record moves {moved} by up to 2C; "
                "exact composition (Balle and Wang 2018; Dong et al. 2022)"
            ),
            published_source=THEOREMS[theorem(shape)],
        )


def theorem(shape: Shape) -> str:
    """Theorem of the published figure of noisy gradients."""
    return "DPSD Theorem 1" if shape.paper == "DPSD" else "DPDFD Theorem 3"
