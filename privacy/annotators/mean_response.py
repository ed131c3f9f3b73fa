"""Annotator for the mean response of an ensemble of teachers on disjoint shards: noisy directions, not labels."""

from __future__ import annotations

import torch

from privacy.account import Budget
from privacy.annotators.base import Annotator, of_all_processes
from privacy.events import Gaussian
from privacy.mechanisms.bounding import normalize_per_sample, zero_non_finite_samples
from privacy.mechanisms.description import MechanismDescription, of_shards
from privacy.mechanisms.gradients import output_gradient_mu
from privacy.mechanisms.noise import NoiseSource
from privacy.plan import Charge


class MeanResponseAnnotator(Annotator):
    """Releases (1/n)(Σ_j u_j + N(0, σ² I)) for each image, u_j the direction of teacher j's logits.

    The logits on an image are centred, which does not change their softmax, and divided by their norm: |u_j| ≤ 1. One
    record changes one teacher on its own shard, whose u_j moves by at most 2 on every image. A call on B images
    therefore costs μ² = B·(2/σ)², like DPDFD's Algorithm 2, whose gradients are bounded in the same way.

    None of the papers has this. Votes (DGD; Papernot et al. 2018) move by only √2, but keep only the class of each
    image. Directions are close to linear in any features in which the teachers are linear, so that a student that
    averages the noise over many images (`fit_noisy_responses`) learns more from each.

    Args:
        noise_multiplier: σ, on the sum over teachers.
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; null is the operating system's.
    """

    def __init__(self, *, noise_multiplier: float, budget: Budget = Budget(), noise: NoiseSource | None = None) -> None:
        super().__init__(budget=budget, noise=noise)
        if not 1e-30 <= noise_multiplier <= 1e30:
            raise ValueError(f"noise_multiplier must lie between 1e-30 and 1e30, got {noise_multiplier}")
        self.noise_multiplier = noise_multiplier

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        mu = output_gradient_mu("ensemble", batch_size, self.noise_multiplier)
        return Charge(release=Gaussian(mu=mu), queries=batch_size)

    def std(self, num_teachers: int) -> float:
        """Standard deviation of the noise on each coordinate of what is released."""
        return self.noise_multiplier / num_teachers

    @of_all_processes(samples=-2)
    def annotate(self, logits: torch.Tensor) -> torch.Tensor:
        """Charges one call, then releases the batch. In float64 on the CPU, see `GradientAnnotator.annotate`.

        Args:
            logits: Every teacher's logits, shape (n, B, c). **Private.** A sample that is not finite counts as zeros.

        Returns:
            Shape (B, c), detached, with the dtype and device of `logits`.

        Raises:
            ValueError: Not of the shape that was bound: nothing is charged.
            BudgetExceeded: The target does not allow it: nothing is charged or released.
        """
        self._require_shape("logits", logits, teachers=True)
        self._spend(self.charge)
        rows = zero_non_finite_samples(logits.cpu().flatten(0, 1))
        # Checked again: the mean of very large numbers overflows.
        centred = zero_non_finite_samples(rows - rows.mean(dim=1, keepdim=True))
        directions = normalize_per_sample(centred, norm_bound=1.0, stability=0.0)
        noise = self.noise_multiplier * self.noise.gaussian(self.shape)
        released = (directions.view(len(logits), *self.shape).sum(dim=0) + noise) / len(logits)
        return released.to(logits.dtype).to(logits.device)

    def describe(self) -> MechanismDescription:
        return of_shards(
            mechanism=(
                "the mean over teachers on disjoint shards of the directions of their logits (less their mean, of norm "
                f"1 at most), with Gaussian noise of standard deviation "
                f"sigma={self.noise_multiplier:g} on the sum of each coordinate (B={self.shape[0]} images in a call)"
            ),
            source=(
                "Gaussian mechanism, one record moves one teacher's direction on each image by up to 2; exact "
                "composition (Balle and Wang 2018; Dong et al. 2022)"
            ),
        )
