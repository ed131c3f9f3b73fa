"""FedADI: images optimised against the clients' ensemble (Adaptive DeepInversion)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation
from lightning_modules.baselines.ensemble import (
    SERVER_HOLDS_MODELS,
    ensemble_targets,
    mean_logits,
    mean_logits_and_statistics,
    require_response_annotator,
    unprotected_clients,
)
from lightning_modules.baselines.image_pool import ImagePool
from lightning_modules.baselines.image_terms import jensen_shannon, total_variation
from lightning_modules.image_source import Images
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks.batchnorm import evaluating
from lightning_modules.optimizers import Optimizers
from lightning_modules.priors.base import ImagePrior, check_sample
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_number, check_whole_number
from privacy.annotators import ResponseAnnotator

__all__ = ["FedADI", "InversionTerms", "NoisePrior"]

_REASON = "images were optimised against the clients' models"


class NoisePrior(ImagePrior):
    """Standard normal pixels, where DeepInversion begins; here cut off at -1 and 1."""

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


@dataclass(frozen=True, kw_only=True)
class InversionTerms:
    """The loss of an image (Yin et al. 2020) and how images take turns with the student.

    The weights are this project's.

    Attributes:
        statistics_weight: α_f, of the distance to the BatchNorm statistics of every client's model.
        variation_weight: α_tv, of `total_variation`.
        norm_weight: α_l2, of the mean norm of an image.
        competition_weight: α_c, of 1 minus the Jensen-Shannon divergence of student and ensemble.
        image_steps: Steps of Adam on one batch of images.
        rate: Its rate.
        student_steps: Steps of the student before the next batch of images is made.
        pool_size: How many of the newest images the student draws from.
    """

    statistics_weight: float = 1.0
    variation_weight: float = 1e-3
    norm_weight: float = 1e-5
    competition_weight: float = 1.0
    image_steps: int = 100
    rate: float = 0.05
    student_steps: int = 20
    pool_size: int = 50_000

    def __post_init__(self) -> None:
        for name in ("statistics_weight", "variation_weight", "norm_weight", "competition_weight"):
            check_number(f"terms.{name}", getattr(self, name), least=0)
        check_number("terms.rate", self.rate, above=0)
        for name in ("image_steps", "student_steps", "pool_size"):
            check_whole_number(f"terms.{name}", getattr(self, name), least=1)


class FedADI(DataFreeDistillation):
    """Yin et al., *Dreaming to Distill: Data-Free Knowledge Transfer via DeepInversion*, CVPR 2020, of an ensemble.

    By turns: a batch of images with classes drawn for them, whose pixels are optimised against the mean logits of the
    clients' models (cross-entropy to these classes, BatchNorm statistics of every model, total variation, L2 norm, and
    disagreement with the student); then steps of the student by KL to the mean logits of images that were made. The
    paper's shifts and mirror images between steps are left out, and pixels are kept in [-1, 1] after each.

    **No privacy**: the server holds the clients' models, and record-level ε is infinite.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: Images per step; linked from the data.
        teacher: The file of a `TeacherEnsemble` on `Clients`, or an `nn.ModuleList` in a script.
        annotator: Budget and ledger. Default: `ResponseAnnotator`.
        student: Builds the student. Default: `SmallCNN`.
        prior: Images that the optimisation begins with. Default: `NoisePrior`.
        terms: The images' loss and their turns.
        optimizers: Optimizer and schedule of the student.

    Raises:
        ValueError: A setting that has no meaning.
    """

    annotator: ResponseAnnotator

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        teacher: str | nn.Module,
        annotator: ResponseAnnotator | None = None,
        student: Callable[..., nn.Module] | None = None,
        prior: ImagePrior | None = None,
        terms: InversionTerms = InversionTerms(),
        optimizers: Optimizers = Optimizers(),
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=annotator or ResponseAnnotator(),
            teacher=teacher,
            student=student,
            images=Images(source="prior", prior=prior or NoisePrior()),
            optimizers=optimizers,
        )
        require_response_annotator(self.annotator)
        self.terms = settings_of(InversionTerms, terms, name="terms")
        self.pool = ImagePool(most=self.terms.pool_size, image_shape=self.image_shape)

    @property
    def of_ensemble(self) -> bool:
        """The clients' models."""
        return True

    @property
    def needs_gradients_of_teacher(self) -> str | None:
        """See `DataFreeDistillation.needs_gradients_of_teacher`."""
        return _REASON

    def assumptions(self) -> list[str]:
        """See `DataFreeDistillation.assumptions`."""
        return [SERVER_HOLDS_MODELS]

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of the student, before it new images where it is their turn. `batch` is a step index."""
        with self.draws.seeded(self.steps_done):
            if self.steps_done % self.terms.student_steps == 0:
                self.make_images()
            draw = self.draws.stream(self.steps_done, "pool")
            self.update_student(self.pool.draw(self.images.rows, generator=draw, device=self.device))
        self.end_step()

    def make_images(self) -> None:
        """Optimises the pixels of one batch, and keeps it."""
        draw = self.draws.stream(self.steps_done, "classes")
        classes = torch.randint(self.num_classes, (self.images.rows,), generator=draw).to(self.device)
        clients = unprotected_clients(self.teacher, self.annotator, reason=_REASON, device=self.device)
        images = self.draw_images(self.steps_done, None).clone().requires_grad_()
        optimizer = torch.optim.Adam([images], lr=self.terms.rate)
        with evaluating(self.student):
            for _ in range(self.terms.image_steps):
                loss = self.image_loss(images, classes, clients)
                (images.grad,) = torch.autograd.grad(loss, [images])
                optimizer.step()
                images.data.clamp_(-1, 1)
        self.log_in_step("train/image_loss", loss.detach())
        self.pool.add(self.of_all(images))

    def image_loss(self, images: torch.Tensor, classes: torch.Tensor, clients: list[nn.Module]) -> torch.Tensor:
        """Loss of images (N, C, H, W) with classes (N,) that were drawn for them."""
        terms = self.terms
        if terms.statistics_weight:
            logits, statistics = mean_logits_and_statistics(clients, images)
        else:
            logits, statistics = mean_logits(clients, images), images.new_zeros(())
        loss = F.cross_entropy(logits, classes) + terms.statistics_weight * statistics
        loss = loss + terms.variation_weight * total_variation(images)
        loss = loss + terms.norm_weight * torch.linalg.vector_norm(images.flatten(1), dim=1).mean()
        if terms.competition_weight:
            agreement = 1 - jensen_shannon(logits, self.student(images).float())
            loss = loss + terms.competition_weight * agreement
        total: torch.Tensor = loss
        return total

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """The newest images, shape (n, C, H, W) with n at most `count`; those it would begin with where it has none."""
        kept = self.pool.images[-count:].float().to(self.device)
        return kept if len(kept) else super().synthetic_grid(count)

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """See `DataFreeDistillation.annotate`."""
        return ensemble_targets(self.teacher, self.annotator, images)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the images that the student draws from."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["image_pool"] = self.pool.images

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self.pool.images = checkpoint["image_pool"]
