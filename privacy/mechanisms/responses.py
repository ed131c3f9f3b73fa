"""Responses of teachers: as they are, which only their own training bounds, and their noisy mean over an ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from privacy.checks import check_number
from privacy.events import Gaussian, Unbounded
from privacy.mechanisms.base import Description, Mechanism, Shape, of_shards, require_shape
from privacy.mechanisms.bounding import normalize_per_sample, zero_non_finite_samples
from privacy.mechanisms.noisy_gradients import output_gradient_mu
from privacy.plan import Charge


@dataclass(frozen=True, kw_only=True)
class RawResponses(Mechanism):
    """Releases logits (B, c) without noise.

    Nothing bounds such responses by themselves. For a teacher trained by DP-SGD they are post-processing, and its own
    (ε, δ) is the record-level figure; for any other teacher ε is infinite.
    """

    def cost(self, shape: Shape) -> Charge:
        release = Unbounded(reason="the teacher's answers were released without noise")
        return Charge(release=release, queries=shape.batch_size)

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """The logits themselves.

        Raises:
            ValueError: They are not finite; they are charged all the same, since failing is a response as well.
        """
        (logits,) = tensors
        if not bool(torch.isfinite(logits).all()):
            raise ValueError(
                "the teacher's responses must be finite, got nan or inf: its weights or its inputs overflow"
            )
        return logits.detach().clone()

    def describe(self, shape: Shape) -> Description:
        return Description(
            mechanism=f"the teacher's logits on synthetic images, without noise (B={shape.batch_size} in a call)",
            relation="that of the teacher's own guarantee, where it has one",
            source="post-processing of the teacher",
            noise="",
        )


@dataclass(frozen=True, kw_only=True)
class NoisyMeanResponse(Mechanism):
    """Releases (1/n)(Σ_j u_j + N(0, σ² I)) for each image, u_j the direction of teacher j's logits.

    The logits on an image are centred, which does not change their softmax, and divided by their norm: |u_j| ≤ 1. One
    record changes one teacher on its own shard, whose u_j moves by at most 2 on every image. A call on B images
    therefore costs μ² = B·(2/σ)², like DPDFD's Algorithm 2, whose gradients are bounded in the same way.

    None of the papers has this. Votes (DGD; Papernot et al. 2018) move by only √2, but keep only the class of each
    image. Directions are close to linear in any features in which the teachers are linear, so that a student that
    averages the noise over many images (`fit_noisy_responses`) learns more from each.

    Attributes:
        noise_multiplier: σ, on the sum over teachers.
    """

    samples: ClassVar[int] = -2

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_number("noise_multiplier", self.noise_multiplier, least=1e-30, most=1e30)

    def cost(self, shape: Shape) -> Charge:
        mu = output_gradient_mu("ensemble", shape.batch_size, self.noise_multiplier)
        return Charge(release=Gaussian(mu=mu), queries=shape.batch_size)

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        require_shape("logits", tensors[0], shape, teachers=True)
        return self.cost(shape), 1

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """In float64 on the CPU, see `NoisyGradients.answer`.

        Args:
            shape: See `Mechanism`.
            tensors: Every teacher's logits, shape (n, B, c). A sample that is not finite counts as zeros.
            settings: None.

        Returns:
            Shape (B, c), with the dtype and device of the logits.
        """
        (logits,) = tensors
        rows = zero_non_finite_samples(logits.cpu().flatten(0, 1))
        # Checked again: the mean of very large numbers overflows.
        centred = zero_non_finite_samples(rows - rows.mean(dim=1, keepdim=True))
        directions = normalize_per_sample(centred, norm_bound=1.0, stability=0.0).view(logits.shape)
        noise = self.noise_multiplier * self.source.gaussian(logits.shape[1:])
        return ((directions.sum(dim=0) + noise) / len(logits)).to(logits.dtype).to(logits.device)

    def describe(self, shape: Shape) -> Description:
        return of_shards(
            mechanism=(
                "the mean over teachers on disjoint shards of the directions of their logits (less their mean, of norm "
                f"1 at most), with Gaussian noise of standard deviation "
                f"sigma={self.noise_multiplier:g} on the sum of each coordinate (B={shape.batch_size} images in a call)"
            ),
            source=(
                "Gaussian mechanism, one record moves one teacher's direction on each image by up to 2; exact "
                "composition (Balle and Wang 2018; Dong et al. 2022)"
            ),
        )
