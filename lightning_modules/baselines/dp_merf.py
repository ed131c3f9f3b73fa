"""DP-MERF: images whose mean embedding is a released one."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation
from lightning_modules.networks import MeanEmbedding
from lightning_modules.setting_checks import check_choice, check_whole_number
from privacy.annotators import ResponseAnnotator

_REASON = "a generator was fitted to its mean embeddings"


class DPMERF(DataFreeDistillation):
    """Harder, Adamczewski and Park, *DP-MERF: Differentially Private Mean Embeddings with Random Features*, 2021.

    The teacher is a `MeanEmbedding`, released by one step of `DPSGDTeacher`. A generator is fitted to it, and a student
    then learns from the generator's images and the classes that they were made for: post-processing, at the ε of the
    teacher. A competitor, not one of the four papers. Class sizes are taken to be equal.

    Args:
        generator_steps: Steps of the generator, before the first of the student.
        annotator: Budget and ledger. Default: `ResponseAnnotator`.
        **shared: See `DataFreeDistillation`. The first c latent inputs of the generator are the class, one-hot.

    Raises:
        ValueError: Images that are not of a generator with more than c latent inputs.
    """

    unused = ("student.replay", "student.balance", "images.pool", "images.reset_every")

    def __init__(
        self, *, generator_steps: int = 1000, annotator: ResponseAnnotator | None = None, **shared: Any
    ) -> None:
        super().__init__(annotator=annotator or ResponseAnnotator(), **shared)
        check_whole_number("generator_steps", generator_steps, least=1)
        check_choice("images.source", self.images.kind, ("generator",))
        self.generator_steps = generator_steps

    @property
    def needs_gradients_of_teacher(self) -> str:
        return _REASON

    @property
    def next_calls(self) -> int:
        """None: the teacher is read whole, which its own training bounds."""
        return 0

    def calls_ahead(self, steps: int | None) -> int:
        return 0

    def calls_of(self, steps: int) -> int:
        return 0

    def assumptions(self) -> list[str]:
        return [*super().assumptions(), "the teacher's weights were read as they are, which its own guarantee covers"]

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self._embedding()

    def _embedding(self) -> MeanEmbedding:
        network = self.teacher.unprotected(self.annotator, reason=_REASON).to(self.device)
        if not isinstance(network, MeanEmbedding):
            raise ValueError(f"model.teacher must be a MeanEmbedding, got {type(network).__name__}")
        return network

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of the generator, or later of the student. `batch` is a step index, without a data set."""
        with self.draws.seeded(self.steps_done):
            latents = self.draw_latents(self.steps_done)
            assert latents is not None
            classes = torch.randint(self.num_classes, (len(latents),), device=self.device)
            latents[:, : self.num_classes] = F.one_hot(classes, self.num_classes).to(latents)
            if self.steps_done < self.generator_steps:
                targets = F.one_hot(classes, self.num_classes).float()
                self.update_generator(self.generate(latents), targets)
            else:
                images = self.draw_images(self.steps_done, latents).detach()
                self.step_student(F.cross_entropy(self.student(images).float(), classes))
        self.steps_done += 1

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Squared distance of the images' mean embedding from the released one (DP-MERF Eq. 9)."""
        embedding = self._embedding()
        own = targets.T @ embedding.forward_features(images.float()) / len(images)
        return (own - embedding.head.weight).square().sum()
