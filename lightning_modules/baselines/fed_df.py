"""FedDF: distillation of the clients' ensemble on unlabelled images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from lightning_modules.base import DataFreeDistillation
from lightning_modules.baselines.averaging import weighted_mean
from lightning_modules.baselines.ensemble import (
    SERVER_HOLDS_MODELS,
    ensemble_targets,
    require_response_annotator,
    unprotected_clients,
)
from lightning_modules.image_source import Images
from lightning_modules.losses.targets import Annotation
from lightning_modules.optimizers import Optimizers
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_choice
from privacy.annotators import ResponseAnnotator

__all__ = ["FedDF"]


class FedDF(DataFreeDistillation):
    """Lin et al., *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020; one round.

    The student is fitted by KL to the softmax of the clients' mean logits on unlabelled images. These are procedural
    here, or of a generator that nobody trains: the paper has public images of another data set, or a trained generator.

    **No privacy**: the server holds the clients' models, and record-level ε is infinite.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: Images per step; linked from the data.
        teacher: The file of a `TeacherEnsemble` on `Clients`, or an `nn.ModuleList` in a script.
        annotator: Budget and ledger. Default: `ResponseAnnotator`.
        student: Builds the student. Default: `SmallCNN`.
        initial_weights: Where the student begins: `average` of the clients' weights, as in the paper, which needs their
            architecture; or `random`. Clients that began at weights of their own, as those of a `TeacherEnsemble` do,
            have no average of use.
        images: Where images come from: `prior`, `generator` or `both`.
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
        initial_weights: Literal["random", "average"] = "random",
        images: Images = Images(source="prior"),
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
        check_choice("initial_weights", initial_weights, ("random", "average"))
        check_choice("images.source", self.images.kind, ("prior", "generator", "both"))
        self.initial_weights = initial_weights

    @property
    def of_ensemble(self) -> bool:
        """The clients' models."""
        return True

    def assumptions(self) -> list[str]:
        """See `DataFreeDistillation.assumptions`."""
        return [SERVER_HOLDS_MODELS]

    def on_train_start(self) -> None:
        """See `DataFreeDistillation.on_train_start`; the student takes the average over, once in a run."""
        super().on_train_start()
        if self.initial_weights == "average" and not self.steps_done:
            self.take_average()

    def take_average(self) -> None:
        """Gives the student the mean of the clients' weights.

        Raises:
            ValueError: The student is of another architecture.
        """
        clients = unprotected_clients(
            self.teacher, self.annotator, reason="the student begins at the clients' mean weights", device=self.device
        )
        try:
            # Each counts the same: the file does not say how many records a client has.
            self.student.load_state_dict(weighted_mean([one.state_dict() for one in clients], [1.0] * len(clients)))
        except RuntimeError as error:
            raise ValueError(
                "initial_weights='average' needs a student of the clients' architecture: set model.student to their "
                f"model.network, or initial_weights to random ({error})"
            ) from error

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step on one batch of images. `batch` is a step index: no data set stands behind it."""
        with self.draws.seeded(self.steps_done):
            self.update_student(self.draw_images(self.steps_done, self.draw_latents(self.steps_done)))
        self.end_step()

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """See `DataFreeDistillation.annotate`."""
        return ensemble_targets(self.teacher, self.annotator, images)
