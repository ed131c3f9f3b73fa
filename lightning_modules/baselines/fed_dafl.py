"""FedDAFL: data-free learning (DAFL) with the clients' ensemble for the teacher."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from lightning_modules.base import DataFreeDistillation
from lightning_modules.baselines.ensemble import (
    SERVER_HOLDS_MODELS,
    ensemble_targets,
    mean_logits_and_features,
    require_response_annotator,
    unprotected_clients,
)
from lightning_modules.image_source import Images
from lightning_modules.losses.generator import GeneratorLoss
from lightning_modules.losses.targets import Annotation
from lightning_modules.optimizers import Optimizers
from lightning_modules.runtime.hyperparameters import settings_of
from privacy.annotators import ResponseAnnotator

__all__ = ["FedDAFL"]

_REASON = "the generator was trained against the clients' models"


class FedDAFL(DataFreeDistillation):
    """Chen et al., *Data-Free Learning of Student Networks*, ICCV 2019, whose teacher is the clients' mean logits.

    A step fits the student by KL to the ensemble on one batch of the generator, and the generator to the ensemble by
    DAFL's three terms: cross-entropy to its own decision, size of the features (of each client's), and information
    entropy of the mean prediction.

    **No privacy**: the server holds the clients' models, and record-level ε is infinite.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: Images per step; linked from the data.
        teacher: The file of a `TeacherEnsemble` on `Clients`, or an `nn.ModuleList` in a script.
        annotator: Budget and ledger. Default: `ResponseAnnotator`.
        student: Builds the student. Default: `SmallCNN`.
        images: The generator; `source` is `generator`.
        generator_loss: Weights of its terms. The defaults 1, 5 and 0.1 are those of the published code, whose entropy
            is in decimal logarithms: `balance_logarithm: decimal` is as there. `student_loss_weight` is 0.
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
        generator_loss: GeneratorLoss = GeneratorLoss(),
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
        self.generator_criterion = settings_of(GeneratorLoss, generator_loss, name="generator_loss")
        for name in ("student_loss_weight", "statistics_weight"):
            if weight := getattr(self.generator_criterion, name):
                raise ValueError(f"generator_loss.{name} must be 0: DAFL has no such term, got {weight}")

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
        """One step of student and generator. `batch` is a step index: no data set stands behind it."""
        with self.draws.seeded(self.steps_done):
            latents = self.draw_latents(self.steps_done)
            assert latents is not None
            targets = self.update_student(self.draw_images(self.steps_done, latents))
            self.update_generator(latents, targets)
        self.end_step()

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """See `DataFreeDistillation.annotate`."""
        return ensemble_targets(self.teacher, self.annotator, images)

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_oh + α L_a + β L_ie of the clients' models; see `DataFreeDistillation`."""
        clients = unprotected_clients(self.teacher, self.annotator, reason=_REASON, device=images.device)
        return self.generator_criterion.of(*mean_logits_and_features(clients, images))
