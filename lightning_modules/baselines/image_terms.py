"""Images optimised against the clients' models: their loss, their initial values and the pool of finished ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.losses.functional import kd
from lightning_modules.priors.base import ImagePrior, check_sample
from lightning_modules.setting_checks import check_number, check_whole_number


@dataclass(frozen=True, kw_only=True)
class ImageTerms:
    """Settings of the images' loss, besides the cross-entropy to the classes drawn for them, and of the turns.

    DENSE has L_CE + λ1 L_BN + λ2 L_div. FedADI has L_CE + α_f R_BN + α_tv R_TV + α_l2 R_l2 + α_c R_compete. A weight of
    0 switches a term off.

    Attributes:
        statistics_weight: λ1 or α_f, weight of the mean distance to the BatchNorm statistics of the clients' models.
            DENSE's published code sums over m clients, which is a weight m times as large.
        boundary_weight: λ2, weight of `boundary_support`: images that student and ensemble classify differently.
        competition_weight: α_c, weight of 1 minus the Jensen-Shannon divergence of student and ensemble.
        variation_weight: α_tv, weight of `total_variation`.
        norm_weight: α_l2, weight of the mean norm of an image.
        steps: Steps on one batch: of the generator (DENSE's T_G), or of Adam on its pixels.
        student_steps: Steps of the student before the next batch is made; 1 in DENSE's algorithm.
        pool_size: Number of newest images that the student draws from; DENSE's algorithm uses the last batch only, its
            published code all images.
    """

    statistics_weight: float = 1.0
    boundary_weight: float = 0.0
    competition_weight: float = 0.0
    variation_weight: float = 0.0
    norm_weight: float = 0.0
    steps: int = 30
    student_steps: int = 10
    pool_size: int = 50_000

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_weight")):
            check_number(f"image_terms.{name}", getattr(self, name), least=0)
        for name in ("steps", "student_steps", "pool_size"):
            check_whole_number(f"image_terms.{name}", getattr(self, name), least=1)

    def of_pixels(self, images: Tensor) -> Tensor:
        """Weighted terms of images (N, C, H, W) alone."""
        loss = images.new_zeros(())
        if self.variation_weight:
            loss = loss + self.variation_weight * total_variation(images)
        if self.norm_weight:
            loss = loss + self.norm_weight * torch.linalg.vector_norm(images.flatten(1), dim=1).mean()
        return loss

    def of_student(self, ensemble_logits: Tensor, student_logits: Tensor) -> Tensor:
        """Weighted terms of the clients' mean logits (N, c) and the student's (N, c)."""
        loss = ensemble_logits.new_zeros(())
        if self.competition_weight:
            loss = loss + self.competition_weight * (1 - jensen_shannon(ensemble_logits, student_logits))
        if self.boundary_weight:
            loss = loss - self.boundary_weight * boundary_support(ensemble_logits, student_logits)
        return loss


class NoisePrior(ImagePrior):
    """Standard normal pixels, as at the start of DeepInversion, but clipped to [-1, 1]."""

    def sample(
        self,
        batch_size: int,
        *,
        image_shape: tuple[int, int, int],
        generator: torch.Generator,
        device: torch.device | str,
    ) -> torch.Tensor:
        """Draws `batch_size` images (B, C, H, W); see `ImagePrior.sample`."""
        check_sample(batch_size, image_shape)
        drawn = torch.randn(batch_size, *image_shape, generator=generator, device=generator.device)
        return drawn.clamp_(-1, 1).to(device)


class ImagePool:
    """The newest `most` images (C, H, W), in half precision on the CPU.

    Attributes:
        images: (n, C, H, W), the oldest first.
    """

    def __init__(self, *, most: int, image_shape: tuple[int, int, int]) -> None:
        self.most = most
        self.images = torch.empty(0, *image_shape, dtype=torch.float16)

    def add(self, images: Tensor) -> None:
        """Adds images (N, C, H, W) and drops the oldest."""
        # Cloned, since a slice would keep the whole tensor.
        self.images = torch.cat([self.images, images.detach().cpu().half()])[-self.most :].clone()

    def draw(self, count: int, *, generator: torch.Generator, device: torch.device) -> Tensor:
        """Returns images (count, C, H, W) in float32, drawn with replacement."""
        return self.images[torch.randint(len(self.images), (count,), generator=generator)].to(device).float()


def boundary_support(ensemble_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(ensemble || student) for logits (N, c) if the two classify an image differently, else 0; mean over images.

    DENSE's L_div is this with a minus sign: images between the two decision boundaries teach the student most.
    **Subtracted** from the generator's loss.
    """
    divergence = kd(student_logits, ensemble_logits)
    disagree = (ensemble_logits.argmax(1) != student_logits.argmax(1)).to(divergence.dtype)
    return (disagree * divergence).mean()


def jensen_shannon(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two predictions, logits (N, c), over its largest value ln 2; batch mean, in [0, 1].

    Adaptive DeepInversion (Yin et al. 2020): 1 minus this is its R_compete. Their code differs: predictions have
    temperature 3, probabilities are kept in [0.01, 0.99], KL(middle || prediction) replaces KL(prediction || middle),
    and there is no division by ln 2.
    """
    first, second = (functional.log_softmax(logits, 1) for logits in (first_logits, second_logits))
    middle = torch.logsumexp(torch.stack([first, second]), 0) - math.log(2)
    each = [(one.exp() * (one - middle)).sum(1) for one in (first, second)]
    return 0.5 * (each[0] + each[1]).mean() / math.log(2)


def total_variation(images: Tensor) -> Tensor:
    """Norm of the differences of neighbouring pixels, to the right, below and on both diagonals; mean over images.

    Images are (N, C, H, W), with at least 2 pixels per side. This is R_TV of Yin et al. 2020, whose code takes norms
    over the whole batch: √N times as much for N images of equal variation.
    """
    differences = (
        images[..., 1:] - images[..., :-1],
        images[..., 1:, :] - images[..., :-1, :],
        images[..., 1:, 1:] - images[..., :-1, :-1],
        images[..., 1:, :-1] - images[..., :-1, 1:],
    )
    norms = [torch.linalg.vector_norm(one.flatten(1), dim=1).mean() for one in differences]
    return torch.stack(norms).sum()
