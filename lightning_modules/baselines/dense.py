"""DENSE: data-free one-shot federated learning."""

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
from lightning_modules.baselines.image_terms import boundary_support
from lightning_modules.image_source import Images
from lightning_modules.losses.targets import Annotation
from lightning_modules.optimizers import Optimizers
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_number, check_whole_number
from privacy.annotators import ResponseAnnotator

__all__ = ["DENSE", "DenseTerms"]

_REASON = "the generator was trained against the clients' models"


@dataclass(frozen=True, kw_only=True)
class DenseTerms:
    """The generator's loss, L_CE + λ1 L_BN + λ2 L_div, and how it takes turns with the student.

    Attributes:
        statistics_weight: λ1, of the mean distance to the BatchNorm statistics of every client's model. The published
            code sums over clients: with m of them, a weight m times as large.
        boundary_weight: λ2, of the images that student and ensemble decide differently.
        generator_steps: T_G, steps of the generator on one batch of latents and classes.
        student_steps: Steps of the student before the next batch of images is made; 1 in the paper's algorithm.
        pool_size: How many of the newest images the student draws from; the paper's algorithm has the last batch alone,
            its published code all.
    """

    statistics_weight: float = 1.0
    boundary_weight: float = 0.5
    generator_steps: int = 30
    student_steps: int = 10
    pool_size: int = 50_000

    def __post_init__(self) -> None:
        for name in ("statistics_weight", "boundary_weight"):
            check_number(f"terms.{name}", getattr(self, name), least=0)
        for name in ("generator_steps", "student_steps", "pool_size"):
            check_whole_number(f"terms.{name}", getattr(self, name), least=1)


class DENSE(DataFreeDistillation):
    """Zhang et al., *DENSE: Data-Free One-Shot Federated Learning*, NeurIPS 2022, Algorithm 1.

    By turns: a batch of latents with classes drawn for them, on which the generator takes `terms.generator_steps`
    steps against the mean logits of the clients' models (cross-entropy to these classes, BatchNorm statistics of every
    model, and disagreement with the student); then steps of the student by KL to the mean logits of images that were
    made. Set `images.reset_every` to `terms.student_steps` for a new generator each time, as in the published code.

    Of that code is left out: steps on the latents besides the generator's, the choice of the step whose loss was
    lowest, shifts and mirror images, temperature 20 of the student's KL, and that the student goes through all images
    that were made between two batches of new ones.

    **No privacy**: the server holds the clients' models, and record-level ε is infinite.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: Images per step; linked from the data.
        teacher: The file of a `TeacherEnsemble` on `Clients`, or an `nn.ModuleList` in a script.
        annotator: Budget and ledger. Default: `ResponseAnnotator`.
        student: Builds the student. Default: `SmallCNN`.
        images: The generator; `source` is `generator`.
        terms: The generator's loss and its turns.
        optimizers: Optimizers and schedules of student and generator.

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
        images: Images = Images(),
        terms: DenseTerms = DenseTerms(),
        optimizers: Optimizers = Optimizers(),
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=annotator or ResponseAnnotator(),
            teacher=teacher,
            student=student,
            images=settings_of(Images, images, name="images"),
            optimizers=optimizers,
        )
        require_response_annotator(self.annotator)
        if self.images.kind != "generator":
            raise ValueError(f"images.source must be generator, got {self.images.kind!r}")
        self.terms = settings_of(DenseTerms, terms, name="terms")
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
        """Algorithm 1, data generation: steps of the generator on one batch of latents, whose images are kept."""
        latents = self.draw_latents(self.steps_done)
        assert latents is not None
        draw = self.draws.stream(self.steps_done, "classes")
        classes = torch.randint(self.num_classes, (len(latents),), generator=draw).to(self.device)
        targets = F.one_hot(classes, self.num_classes).float()
        for _ in range(self.terms.generator_steps):
            self.update_generator(latents, targets)
        self.pool.add(self.of_all(self.draw_images(self.steps_done, latents)))

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """See `DataFreeDistillation.annotate`."""
        return ensemble_targets(self.teacher, self.annotator, images)

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_CE + λ1 L_BN + λ2 L_div.

        Args:
            images: Generated images with their graph, shape (n, C, H, W).
            targets: The classes that were drawn for them, one-hot, shape (n, c).
        """
        clients = unprotected_clients(self.teacher, self.annotator, reason=_REASON, device=images.device)
        if self.terms.statistics_weight:
            logits, statistics = mean_logits_and_statistics(clients, images)
        else:
            logits, statistics = mean_logits(clients, images), images.new_zeros(())
        loss = F.cross_entropy(logits, targets) + self.terms.statistics_weight * statistics
        if self.terms.boundary_weight:
            loss = loss - self.terms.boundary_weight * boundary_support(logits, self.student(images).float())
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the images that the student draws from."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["image_pool"] = self.pool.images

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self.pool.images = checkpoint["image_pool"]
