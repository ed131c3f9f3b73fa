"""DPDFD Eq. 4 and DPSD Eq. 3: bounded, noised gradients of the loss with respect to the student's outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import torch

from privacy.checks import check_count, look_up
from privacy.description import FLOATS, LATTICE, MechanismDescription, of_shards
from privacy.events import Gaussian, Release
from privacy.events.discrete import DiscreteGaussian
from privacy.mechanisms.base import Mechanism, Shape, require_shape
from privacy.mechanisms.bounding import keep_largest, zero_non_finite_samples
from privacy.mechanisms.discrete_gaussian import FINEST, discrete_gaussian, lattice_spacing, round_to_lattice
from privacy.mechanisms.gradient_bounding import GRADIENT_BOUNDINGS, GradientBounding
from privacy.mechanisms.gradients import GRADIENT_RELEASES, GradientRelease
from privacy.plan import Charge
from privacy.published import dpdfd_rdp_slope
from privacy.published.claims import Claim, RdpSlope

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

    `privacy/mechanisms/gradients.py` defines each `release`, and how its cost follows from what is bounded.
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
        granularity: Spacing, in units of C and rounded down to a power of two (for example 1e-3), of a lattice for
            discrete Gaussian noise, to which bounded gradients are rounded towards zero: no low bits can reveal a
            record. It costs slightly more, since it is composed only by RDP. Null adds floating-point noise.
    """

    samples: ClassVar[int] = -2

    release: GradientReleases = "per_sample"
    top_k: int | None = None
    bounding: GradientBoundings = "normalize"
    norm_bound: float = 1e-3
    noise_multiplier: float = 100.0
    stability: float = 1e-4
    granularity: float | None = None

    def __post_init__(self) -> None:
        look_up("release", self.release, GRADIENT_RELEASES)
        look_up("bounding", self.bounding, GRADIENT_BOUNDINGS)
        if self.top_k is not None:
            check_count("top_k", self.top_k, minimum=1)
        # Wide enough for any use, and narrow enough that nothing computed from them overflows or vanishes.
        if not _SMALLEST <= self.norm_bound <= _LARGEST:
            raise ValueError(f"norm_bound must lie between {_SMALLEST:g} and {_LARGEST:g}, got {self.norm_bound}")
        if self.noise_multiplier != 0 and not _SMALLEST <= self.noise_multiplier <= _LARGEST:
            raise ValueError(
                f"noise_multiplier must be 0 or lie between {_SMALLEST:g} and {_LARGEST:g}, got {self.noise_multiplier}"
            )
        if not 0 <= self.stability <= _LARGEST:
            raise ValueError(f"stability must lie between 0 and {_LARGEST:g}, got {self.stability}")
        if self.granularity is not None and not FINEST <= self.granularity <= 1:
            raise ValueError(f"granularity must lie between {FINEST:g} and 1, or be null, got {self.granularity}")

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
    def charge(self, shape: Shape) -> Charge:
        batch_size = shape.batch_size
        if not self.noise_multiplier:
            return Charge(release=Gaussian(mu=math.inf), queries=batch_size)
        mu = self.way.mu(batch_size, self.noise_multiplier, bounding=self.bounded_by)
        event: Release = Gaussian(mu=mu) if self.granularity is None else DiscreteGaussian(mu)
        return Charge(release=event, claim=self.claim(shape), queries=batch_size)

    def claim(self, shape: Shape) -> Claim:
        """What the paper's theorem counts for one call with noise."""
        slope = dpdfd_rdp_slope(self.norm_bound, shape.num_classes, shape.batch_size, self.noise_multiplier)
        return RdpSlope(source=theorem(shape), slope=slope)

    def charge_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        require_shape("gradients", tensors[0], shape, teachers=self.way.of_ensemble)
        return self.charge(shape), 1

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
        (gradients,), way, spacing = tensors, self.way, self.lattice
        rows = self.bounded(gradients, batch_size=shape.batch_size, by=GRADIENT_BOUNDINGS["clip"] if bounded else None)
        values = rows.sum(dim=0) if way.of_ensemble or way.of_sum else rows
        std = way.noise_std(shape.batch_size, self.noise_multiplier) * self.norm_bound
        if spacing is None or not std:
            released = values + self.source.gaussian(values.shape) * std
        else:
            released = values + discrete_gaussian(self.source, values.shape, sigma=std / spacing).double() * spacing
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
        groups = self.bounded_by.grouped(rows, batch_size=batch_size)
        rows = (by or self.bounded_by).bound(groups, norm_bound=self.norm_bound, stability=self.stability)
        if (spacing := self.lattice) is not None:  # towards zero, so that no norm grows, and before anything is summed
            rows = round_to_lattice(rows, norm_bound=self.norm_bound, granularity=spacing).double() * spacing
        return rows.view(gradients.shape)

    @cached_property
    def lattice(self) -> float | None:
        """Spacing of the lattice of noise and bounded gradients."""
        return None if self.granularity is None else lattice_spacing(self.granularity, norm_bound=self.norm_bound)

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

    def describe(self, shape: Shape) -> MechanismDescription:
        many = self.way.of_ensemble
        return (of_shards if many else MechanismDescription)(
            noise="" if not self.noise_multiplier else FLOATS if self.granularity is None else LATTICE,
            mechanism=f"gradients of the distillation loss with respect to the student's outputs, {self.words(shape)}",
            source=(
                f"Gaussian mechanism, one record moves {self.bounded_by.moved(of_ensemble=many)} by up to 2C; "
                "exact composition (Balle and Wang 2018; Dong et al. 2022)"
            ),
            published_source=THEOREMS[theorem(shape)],
        )


def theorem(shape: Shape) -> str:
    """Theorem of the published figure of noisy gradients."""
    return "DPSD Theorem 1" if shape.paper == "DPSD" else "DPDFD Theorem 3"
