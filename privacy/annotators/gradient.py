"""DPDFD Eq. 4 and DPSD Eq. 3: bounded, noised gradients of the loss with respect to the student's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

from privacy.account import Budget
from privacy.annotators.base import Annotator, of_all_processes, uncompiled
from privacy.checks import check_count, look_up
from privacy.events import Gaussian, Release
from privacy.events.discrete import DiscreteGaussian
from privacy.mechanisms.bounding import keep_largest, zero_non_finite_samples
from privacy.mechanisms.description import FLOATS, LATTICE, MechanismDescription, of_shards
from privacy.mechanisms.discrete_gaussian import FINEST, discrete_gaussian, lattice_spacing, round_to_lattice
from privacy.mechanisms.gradient_bounding import GRADIENT_BOUNDINGS, GradientBounding
from privacy.mechanisms.gradients import GRADIENT_MECHANISMS
from privacy.mechanisms.noise import NoiseSource
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


class GradientAnnotator(Annotator):
    """DPDFD Eq. 4, DPSD Eq. 3: bounded gradients of the loss w.r.t. the student's outputs, plus Gaussian noise.

    Per sample, ḡ_i = C·g_i/(‖g_i‖₂ + e) (or clipped to C). One private record may change the teacher, hence **every**
    gradient of every batch, each by up to 2C: neighbours differ in one record (zero-out; replace-one and add-or-remove
    follow). With `bounding: normalize_batch` Ḡ = C·G/(‖G‖_F + e), and all gradients of the batch together move by up to
    2C.

    `privacy/mechanisms/gradients.py` defines each `release`, and how its cost follows from what is bounded.
    `batch_mean` and `batch_mean_rows` carry no label of any image and distil nothing. For `ensemble` one record changes
    one teacher, whose gradients move by as much as those of a single teacher; all others stay equal to the last bit.

    The theorem of the published figure (DPDFD's Theorem 3, DPSD's Theorem 1) counts the same for all of them.

    Args:
        release: `per_sample` (what the papers' accuracies need), `per_sample_full`, `batch_mean` (DPDFD Algorithm 1 as
            printed), `batch_mean_rows` (DPSD Eq. 3 as printed), or `ensemble` (n teachers, DPDFD Algorithm 2).
        top_k: Number k of entries of largest magnitude that are kept of each gradient, before it is bounded (DPSD's
            M_k); None keeps all. Which ones depends on the teacher, so the noise still goes on **all** coordinates.
        bounding: `normalize` or `clip` each sample's gradient to C; or `normalize_batch`, the whole batch of one
            teacher by its Frobenius norm, as the papers' ‖g‖₂ without an index may be read, which costs less and leaves
            each sample's gradient a norm of about C/√B.
        norm_bound: C.
        noise_multiplier: σ. Zero releases the gradients themselves: both ε are infinite.
        stability: e.
        granularity: Spacing, in units of C and rounded down to a power of two (for example 1e-3), of a lattice for
            discrete Gaussian noise, to which bounded gradients are rounded towards zero: no low bits can reveal a
            record. It costs slightly more, since it is composed only by RDP. None adds floating-point noise.
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; null is the operating system's.
    """

    def __init__(
        self,
        *,
        release: GradientReleases = "per_sample",
        top_k: int | None = None,
        bounding: GradientBoundings = "normalize",
        norm_bound: float = 1e-3,
        noise_multiplier: float = 100.0,
        stability: float = 1e-4,
        granularity: float | None = None,
        budget: Budget = Budget(),
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(budget=budget, noise=noise)
        self.mechanism = look_up("release", release, GRADIENT_MECHANISMS)
        if top_k is not None:
            check_count("top_k", top_k, minimum=1)
        self.bounded_by = look_up("bounding", bounding, GRADIENT_BOUNDINGS)
        # Wide enough for any use, and narrow enough that nothing computed from them overflows or vanishes.
        if not _SMALLEST <= norm_bound <= _LARGEST:
            raise ValueError(f"norm_bound must lie between {_SMALLEST:g} and {_LARGEST:g}, got {norm_bound}")
        if noise_multiplier != 0 and not _SMALLEST <= noise_multiplier <= _LARGEST:
            raise ValueError(
                f"noise_multiplier must be 0 or lie between {_SMALLEST:g} and {_LARGEST:g}, got {noise_multiplier}"
            )
        if not 0 <= stability <= _LARGEST:
            raise ValueError(f"stability must lie between 0 and {_LARGEST:g}, got {stability}")
        if granularity is not None and not FINEST <= granularity <= 1:
            raise ValueError(f"granularity must lie between {FINEST:g} and 1, or be null, got {granularity}")
        self.granularity = granularity
        self._lattice = None if granularity is None else lattice_spacing(granularity, norm_bound=norm_bound)
        self.release: GradientReleases = release
        self.top_k = top_k
        self.bounding: GradientBoundings = bounding
        self.norm_bound = norm_bound
        self.noise_multiplier = noise_multiplier
        self.stability = stability

    def bind(self, *, batch_size: int, num_classes: int, paper: str | None = None) -> None:
        """See `Annotator.bind`.

        Raises:
            ValueError: `top_k` exceeds the number of classes.
        """
        super().bind(batch_size=batch_size, num_classes=num_classes, paper=paper)
        if self.top_k is not None and self.top_k > num_classes:
            raise ValueError(f"top_k must be at most the number of classes {num_classes}, got {self.top_k}")

    @property
    def theorem(self) -> str:
        """Paper and theorem of the published figure."""
        return "DPSD Theorem 1" if self._paper == "DPSD" else "DPDFD Theorem 3"

    @property
    def claim_of_nonprivate_access(self) -> Claim | None:
        """DPSD does not count its teacher as a discriminator (DPSD-T); see `Annotator`."""
        return RdpSlope(source=self.theorem, slope=0.0) if self._paper == "DPSD" else None

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        if not self.noise_multiplier:
            return Charge(release=Gaussian(mu=math.inf), queries=batch_size)
        mu = self.mechanism.mu(batch_size, self.noise_multiplier, bounding=self.bounded_by)
        slope = dpdfd_rdp_slope(self.norm_bound, num_classes, batch_size, self.noise_multiplier)
        event: Release = Gaussian(mu=mu) if self.granularity is None else DiscreteGaussian(mu)
        return Charge(release=event, claim=RdpSlope(source=self.theorem, slope=slope), queries=batch_size)

    def _add_noise(self, values: torch.Tensor, std: float) -> torch.Tensor:
        """Adds Gaussian noise of standard deviation `std` to float64 values of any shape."""
        if self._lattice is None or not std:
            return values + self.noise.gaussian(tuple(values.shape)) * std
        # `_bounded` has rounded to multiples of the lattice.
        integers = discrete_gaussian(self.noise, tuple(values.shape), sigma=std / self._lattice)
        return values + integers.double() * self._lattice

    @of_all_processes(samples=-2)
    def annotate(self, gradients: torch.Tensor) -> torch.Tensor:
        """Charges one step, then releases the batch.

        Computed in float64 on the CPU, whatever the precision of the run: the batch is small, and sensitivity must not
        depend on rounding.

        Args:
            gradients: g, shape (B, c), gradients of each sample's own loss (not of the batch mean: those would be so
                small that `stability` swamps them). For `ensemble` g_ij of every teacher j, shape (n, B, c).

        Returns:
            Shape (B, c), detached, with the dtype and device of `gradients`. For `batch_mean` and `batch_mean_rows` all
            samples are equal.

        Raises:
            ValueError: Not of the shape that was bound: nothing is charged.
            BudgetExceeded: The target does not allow one more step: nothing is charged or released.
        """
        self._require_shape("gradients", gradients, teachers=self.mechanism.of_ensemble)
        return self._charged_release(gradients, self._bounded)

    @uncompiled
    @torch.no_grad()
    def annotate_bounded(self, gradients: torch.Tensor) -> torch.Tensor:
        """Releases gradients like `annotate`, after the clients of a federation have bounded them by C.

        Clients are not trusted: anything longer than C is clipped, so that the cost holds for the others whatever one
        of them sent.
        """
        self._require_shape("gradients", gradients, teachers=self.mechanism.of_ensemble)
        return self._charged_release(gradients, self._clipped)

    def charge_elsewhere(self) -> None:
        """Charges one call whose gradients clients bound and noise, before it is sent to them.

        Raises:
            BudgetExceeded: The target does not allow one more step: no query may be sent.
        """
        self._spend(self.charge)

    def _charged_release(self, gradients: torch.Tensor, bound: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        self._spend(self.charge)
        teachers = gradients.cpu() if gradients.ndim == 3 else gradients.cpu().unsqueeze(0)
        rows = bound(teachers.flatten(0, 1)).view(teachers.shape)
        std = self.mechanism.noise_std(self.shape[0], self.noise_multiplier) * self.norm_bound
        released = self.mechanism.release(rows, lambda values: self._add_noise(values, std))
        # The dtype first: not every device has float64.
        return released.to(gradients.dtype).to(gradients.device)

    def _bounded(self, gradients: torch.Tensor) -> torch.Tensor:
        """Bounds gradients (n·B, c) of n teachers, over the samples of all processes, in float64."""
        return self._within(gradients, self.bounded_by)

    def _clipped(self, gradients: torch.Tensor) -> torch.Tensor:
        """Like `_bounded`, for gradients that clients have bounded: clips what is too long, and changes no other."""
        return self._within(gradients, GRADIENT_BOUNDINGS["clip"])

    def _within(self, gradients: torch.Tensor, bounding: GradientBounding) -> torch.Tensor:
        """Masked gradients, of which each sample, or each teacher's whole batch, is bounded jointly, in float64."""
        rows = zero_non_finite_samples(gradients)
        if self.top_k is not None:
            rows = keep_largest(rows, k=self.top_k)
        groups = self.bounded_by.grouped(rows, batch_size=self.shape[0])
        bounded = bounding.bound(groups, norm_bound=self.norm_bound, stability=self.stability)
        if self._lattice is not None:  # towards zero, so that no norm grows, and before anything is summed
            whole = round_to_lattice(bounded, norm_bound=self.norm_bound, granularity=self._lattice)
            bounded = whole.double() * self._lattice
        return bounded.view(gradients.shape)

    def _released(self) -> str:
        """How gradients are bounded and released, for a reader."""
        batch_size, _ = self.shape
        std = self.mechanism.noise_std(batch_size, self.noise_multiplier)
        masked = "" if self.top_k is None else f"their {self.top_k} largest entries kept, "
        words = self.mechanism.words.format(std=std)
        return (
            f"{masked}{self.bounded_by.words.format(C=self.norm_bound)}, "
            f"{f'released as {words}' if self.noise_multiplier else 'released without noise'} "
            f"(sigma={self.noise_multiplier:g}, B={batch_size}, release={self.release})"
        )

    def describe(self) -> MechanismDescription:
        many = self.mechanism.of_ensemble
        return (of_shards if many else MechanismDescription)(
            noise="" if not self.noise_multiplier else FLOATS if self.granularity is None else LATTICE,
            mechanism=f"gradients of the distillation loss with respect to the student's outputs, {self._released()}",
            source=(
                f"Gaussian mechanism, one record moves {self.bounded_by.moved(of_ensemble=many)} by up to 2C; "
                "exact composition (Balle and Wang 2018; Dong et al. 2022)"
            ),
            published_source=THEOREMS[self.theorem],
        )
