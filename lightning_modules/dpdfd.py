"""C: model conversion via differentially private data-free distillation (DPDFD), single teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.nn import functional as F

from lightning_modules.components import DAFLGenerator, ImagePrior, StrokePrior, logits_and_features
from lightning_modules.components.batchnorm import frozen_statistics
from lightning_modules.components.losses import (
    activation,
    class_balance,
    decoupled_kd,
    one_hot_loss,
    soft_cross_entropy,
)
from lightning_modules.distillation import DataFreeDistillation
from lightning_modules.randomness import seeded, stream
from privacy.annotators import GradientAnnotator

__all__ = ["DPDFD"]


class DPDFD(DataFreeDistillation):
    """Liu et al., *Model Conversion via Differentially Private Data-Free Distillation*, IJCAI 2023, Algorithm 1.

    A student learns from a private teacher on synthetic images. Each row's gradient of the distillation loss with
    respect to
    the student's outputs is bounded and noised (`annotator`), subtracted from the outputs, and the student is fitted
    to the
    result. The generator takes the student, not the teacher, as its discriminator, which costs no privacy.

    Where the paper leaves a choice:

    - *Outputs are logits.* y_s = softmax(logits - γ·g̃), and the student sees γ and C through their product alone.
    - *Gradients are per row*, of each row's own loss. Of a batch-mean loss they would be so small that e swamps them.
    - *The settings as printed* (α = β = 1, L2 norm of the features, L_S in the generator's step) collapsed to one
    class in
      trials; the defaults here are what works. `sweeps/dpdfd_mnist_paper.yaml` has the letter.
    - *Images* may also come from a prior drawn by rule, which spends nothing and does far better.

    Args:
        num_classes: See `DataFreeDistillation`.
        image_shape: See `DataFreeDistillation`.
        batch_size: B, synthetic images per step and teacher queries charged for it.
        teacher: See `DataFreeDistillation`.
        annotator: Mechanism, noise and budget. Default: `GradientAnnotator` with C=1e-3, σ=100, `per_sample`.
        teacher_network: See `DataFreeDistillation`.
        private_data: See `DataFreeDistillation`.
        student: See `DataFreeDistillation`.
        generator: Builds the generator, called with `image_shape`. Default: `DAFLGenerator`.
        images: Where synthetic images come from: `generator`, `prior`, or `both` (half of each batch).
        prior: Images drawn by rule, for `prior` and `both`. Default: `StrokePrior`.
        gamma: γ; None is 1/C, so that a step moves the logits by about one.
        dkd_alpha: Weight of the target-class part of decoupled distillation.
        dkd_beta: Weight of the other classes' part.
        one_hot_weight: Weight of the generator's cross-entropy to the student's own decision; 0 switches it off.
        balance_weight: α, of the entropy of the mean prediction; 0 switches it off.
        activation_weight: β, of the student's activations, which are made larger; 0 switches it off.
        activation_norm: `l1` mean absolute feature, or `l2` mean row norm (C Eq. 5).
        student_loss_weight: Weight of L_S in the generator's step (1 in the paper's line 14).
        student_optimizer: Default: Adam, rate 1e-3.
        generator_optimizer: Default: Adam, rate 1e-3.

    Raises:
        ValueError: A setting that has no meaning.
    """

    paper = "C"
    annotator: GradientAnnotator

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        teacher: str | nn.Module,
        annotator: GradientAnnotator | None = None,
        teacher_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        student: Callable[..., nn.Module] | None = None,
        generator: Callable[..., nn.Module] | None = None,
        images: Literal["generator", "prior", "both"] = "generator",
        prior: ImagePrior | None = None,
        gamma: float | None = None,
        dkd_alpha: float = 1.0,
        dkd_beta: float = 8.0,
        one_hot_weight: float = 1.0,
        balance_weight: float = 5.0,
        activation_weight: float = 0.1,
        activation_norm: Literal["l1", "l2"] = "l1",
        student_loss_weight: float = 0.0,
        student_optimizer: OptimizerCallable | None = None,
        generator_optimizer: OptimizerCallable | None = None,
    ) -> None:
        annotator = annotator or GradientAnnotator()
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=annotator,
            teacher=teacher,
            teacher_network=teacher_network,
            private_data=private_data,
            student=student,
        )
        if images not in ("generator", "prior", "both"):
            raise ValueError(f"images must be generator, prior or both, got {images!r}")
        if images == "both" and batch_size < 2:
            raise ValueError(f"images='both' needs a batch_size of 2 or more, got {batch_size}")
        if gamma is not None and not gamma > 0:
            raise ValueError(f"gamma must be above 0 or null for 1/norm_bound, got {gamma}")
        self.images: Literal["generator", "prior", "both"] = images
        self.gamma = 1 / annotator.norm_bound if gamma is None else gamma
        self.dkd_alpha, self.dkd_beta = dkd_alpha, dkd_beta
        self.one_hot_weight = one_hot_weight
        self.balance_weight = balance_weight
        self.activation_weight = activation_weight
        self.activation_norm: Literal["l1", "l2"] = activation_norm
        self.student_loss_weight = student_loss_weight
        self.student_optimizer_factory = student_optimizer
        self.generator_optimizer_factory = generator_optimizer
        self.prior = (prior or StrokePrior()) if images != "generator" else None
        self.generator = (generator or DAFLGenerator)(image_shape=self.image_shape) if images != "prior" else None
        self.published_artefacts = (
            ("student", "synthetic images") if self.generator is None else ("student", "generator", "synthetic images")
        )

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One iteration of Algorithm 1. `batch` is a step index: no data set stands behind it."""
        assert self.draw_seed is not None
        with seeded(self.draw_seed, self.steps_done, self.global_rank, self.device):
            latents = self.draw_latents(self.steps_done)
            images = self.draw_images(self.steps_done, latents)
            targets = self.update_student(images)
            if latents is not None:
                self.update_generator(latents, targets[: len(latents)])
        self.log_privacy()
        self.steps_done += 1

    def draw_latents(self, step: int) -> torch.Tensor | None:
        """Line 2: z, shape (n, latent_dim), where n is B, or B/2 for `images='both'`; None without a generator."""
        if self.generator is None:
            return None
        count = self.batch_size if self.images == "generator" else self.batch_size // 2
        assert self.draw_seed is not None
        draw = stream(self.draw_seed, step, self.global_rank, "latents")
        return torch.randn(count, self.latent_dim, generator=draw).to(self.device)

    @property
    def latent_dim(self) -> int:
        """Width of the generator's input."""
        return int(getattr(self.generator, "latent_dim"))  # noqa: B009 - nn.Module types every attribute as a tensor

    @torch.no_grad()
    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        """Line 3: a batch of synthetic images, shape (B, C, H, W), generated ones first."""
        parts = []
        if self.generator is not None and latents is not None:
            parts.append(self.generator(latents).float())
        if self.prior is not None:
            assert self.draw_seed is not None
            draw = stream(self.draw_seed, step, self.global_rank, "prior")
            count = self.batch_size - sum(len(part) for part in parts)
            parts.append(self.prior.sample(count, image_shape=self.image_shape, generator=draw, device=self.device))
        return torch.cat(parts)

    def update_student(self, images: torch.Tensor) -> torch.Tensor:
        """Lines 4 to 12. Returns the released targets y_s, shape (B, c), detached."""
        optimizer = self._optimizers()[0]
        with self.toggled_optimizer(optimizer):
            outputs = self.student(images)
            released = self.annotator.annotate(self.output_gradients(outputs, images))
            targets = F.softmax(outputs.detach().float() - self.gamma * released, dim=1)
            loss = soft_cross_entropy(outputs.float(), targets).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train/student_loss", loss.detach())
        return targets

    def output_gradients(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Lines 5 and 6: ∂L_T/∂outputs for each row, shape (B, c), float32. **Private** until annotated."""
        with torch.autocast(self.device.type, enabled=False), torch.enable_grad():
            free = outputs.detach().float().requires_grad_()
            loss = decoupled_kd(free, self.teacher.logits(images), alpha=self.dkd_alpha, beta=self.dkd_beta)
            (gradients,) = torch.autograd.grad(loss.sum(), free)
        return gradients

    def update_generator(self, latents: torch.Tensor, targets: torch.Tensor) -> None:
        """Lines 13 and 14, the student as a fixed discriminator.

        Args:
            latents: z of this step, shape (n, latent_dim).
            targets: Released y_s of their images, shape (n, c), detached: a gradient through them would carry the
                teacher past
                the noise.
        """
        assert self.generator is not None
        optimizer = self._optimizers()[1]
        with self.toggled_optimizer(optimizer), frozen_statistics(self.student):
            loss = self.generator_loss(self.generator(latents), targets)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train/generator_loss", loss.detach())

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_G of C Eq. 5 with a weight for each term, plus L_S if switched on.

        Larger activations mean more realistic images, so their term is subtracted.

        Args:
            images: Generated images with their graph, shape (n, C, H, W).
            targets: Released y_s, shape (n, c), held fixed.
        """
        logits, features = logits_and_features(self.student, images)
        logits = logits.float()
        loss = logits.new_zeros(())
        if self.one_hot_weight:
            loss = loss + self.one_hot_weight * one_hot_loss(logits)
        if self.balance_weight:
            loss = loss + self.balance_weight * class_balance(logits)
        if self.activation_weight:
            loss = loss - self.activation_weight * activation(features.float(), norm=self.activation_norm)
        if self.student_loss_weight:
            loss = loss + self.student_loss_weight * soft_cross_entropy(logits, targets.detach()).mean()
        return loss

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """Images for a person to look at, shape (count, C, H, W): the same latents each time."""
        images = self.images
        draw = stream(self.draw_seed or 0, 0, 0, "grid")
        parts = []
        if self.generator is not None:
            fake = count if images == "generator" else count // 2
            latents = torch.randn(fake, self.latent_dim, generator=draw).to(self.device)
            with torch.no_grad(), frozen_statistics(self.generator):
                parts.append(self.generator(latents).float())
        if self.prior is not None:
            left = count - sum(len(part) for part in parts)
            parts.append(self.prior.sample(left, image_shape=self.image_shape, generator=draw, device=self.device))
        return torch.cat(parts)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The student's optimizer, and the generator's if there is one."""
        make_student = self.student_optimizer_factory or _adam
        optimizers = [make_student(self.student.parameters())]
        if self.generator is not None:
            optimizers.append((self.generator_optimizer_factory or _adam)(self.generator.parameters()))
        return optimizers

    def _optimizers(self) -> list[Any]:
        optimizers = self.optimizers()
        return optimizers if isinstance(optimizers, list) else [optimizers]


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)
