"""DP-MERF: images whose mean embedding is a released one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation
from lightning_modules.networks import MeanEmbedding
from lightning_modules.teachers.private_teacher import PrivateModel
from privacy.checks import check_choice, check_count
from privacy.guarantee import Guarantee
from privacy.mechanisms import RawResponses

_REASON = "a generator was fitted to its mean embeddings"


class DPMERF(DataFreeDistillation):
    """Harder, Adamczewski and Park, *DP-MERF: Differentially Private Mean Embeddings with Random Features*, 2021.

    The teacher is a `MeanEmbedding`, released by one step of `DPSGDTeacher`. A generator is fitted to it, and a student
    then learns from generated images and their classes: post-processing, at the teacher's ε. It is a competitor, not
    one of the four papers. Class sizes are assumed to be equal.

    Args:
        generator_steps: Steps of the generator, before the student's first one.
        mechanism: What the teacher releases. Default: `RawResponses`.
        **shared: See `DataFreeDistillation`. An image's class is the largest of the first c latent inputs, which the
            generator gets as a one-hot vector.

    Raises:
        ValueError: The images are not from a generator with more than c latent inputs.
    """

    unused = ("student.replay", "student.balance", "images.pool", "images.reset_every")
    mechanisms = (RawResponses,)
    needs_gradients_of_teacher = _REASON
    #: The teacher's weights are read, which its own training bounds.
    next_calls = 0

    def __init__(self, *, generator_steps: int = 1000, mechanism: RawResponses = RawResponses(), **shared: Any) -> None:
        super().__init__(mechanism=mechanism, **shared)
        check_count("generator_steps", generator_steps, minimum=1)
        check_choice("images.source", self.images.kind, ("generator",))
        if (width := self.images.latent_dim) <= self.num_classes:
            raise ValueError(f"images.generator needs a latent_dim above {self.num_classes} (classes), got {width}")
        self.generator_steps = generator_steps
        assert self.generator is not None
        self.generator.register_forward_pre_hook(self._with_classes)

    def _with_classes(self, generator: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        c, latents = self.num_classes, inputs[0]
        return torch.cat([F.one_hot(latents[:, :c].argmax(dim=1), c).to(latents), latents[:, c:]], dim=1)

    def calls_ahead(self, steps: int | None) -> int:
        return 0

    def calls_of(self, steps: int) -> int:
        return 0

    def schedule_steps(self, name: str, steps: float) -> float:
        return self.generator_steps if name == "generator" else steps - self.generator_steps

    def read_teacher(self) -> PrivateModel:
        """Refuses other networks before anything is charged."""
        teacher = super().read_teacher()
        if not isinstance(network := teacher._network_of(0), MeanEmbedding):
            raise ValueError(f"model.teacher must be a MeanEmbedding, got {type(network).__name__}")
        return teacher

    def guarantee(self) -> Guarantee:
        """States that the teacher's weights were read, not responses."""
        return replace(super().guarantee(), mechanism="the teacher's weights, which are mean embeddings, as they are")

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self._embedding()

    def _embedding(self) -> MeanEmbedding:
        return cast(MeanEmbedding, self.unprotected_teacher(_REASON))

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Makes a step of the generator, or later of the student. `batch` is a step index, without a data set."""
        with self.draws.seeded(self.steps_done):
            latents = self.draw_latents(self.steps_done)
            assert latents is not None
            classes = latents[:, : self.num_classes].argmax(dim=1)
            if self.steps_done < self.generator_steps:
                self.update_generator(self.images.generate(latents), F.one_hot(classes, self.num_classes).float())
            else:
                images = self.draw_images(self.steps_done, latents).detach()
                self.step_student(F.cross_entropy(self.student(images).float(), classes))
        self.steps_done += 1

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Squared distance of the images' mean embedding from the released one (DP-MERF Eq. 9)."""
        embedding = self._embedding()
        own = targets.T @ embedding.forward_features(images.float()) / len(images)
        if self.processes.size > 1:  # the mean over all processes, with the gradient of this one's share
            own = own + (torch.stack(self.processes.gather(own.detach().cpu())).mean(dim=0).to(own) - own).detach()
        return (own - embedding.head.weight).square().sum()
