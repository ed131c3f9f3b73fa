"""C: model conversion via differentially private data-free distillation (DPDFD), of one teacher or of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation, Images
from lightning_modules.functional.generator_terms import GeneratorTerms
from lightning_modules.functional.losses import decoupled_kd, output_gradients, soft_cross_entropy
from lightning_modules.priors import ImagePrior
from lightning_modules.runtime.randomness import seeded
from privacy.annotators import GradientAnnotator

__all__ = ["DPDFD"]


class DPDFD(DataFreeDistillation):
    """Liu et al., *Model Conversion via Differentially Private Data-Free Distillation*, IJCAI 2023, Algorithms 1 and 2.

    A student learns from a private teacher on synthetic images. Each row's gradient of the distillation loss with
    respect to the student's outputs is bounded and noised (`annotator`), subtracted from the outputs, and the student
    is fitted to the result. The generator takes the student, not the teacher, as its discriminator, which costs no
    privacy.

    With `annotator.release: ensemble` (DPDFD-MM, Algorithm 2) the teacher is an ensemble on disjoint shards: each
    teacher's gradient is bounded, and noise is added to their sum. One record then moves one teacher's rows alone, so
    the noise on the mean of n is n times smaller at the same record-level price.

    Where the paper leaves a choice:

    - *Outputs are logits.* y_s = softmax(logits - γ·g̃), and the student sees γ and C through their product alone.
    - *Gradients are per row*, of each row's own loss. Of a batch-mean loss they would be so small that e swamps them.
    - *The settings as printed* (α = β = 1, L2 norm of the features, L_S in the generator's step) collapsed to one
      class in trials; the defaults here are what works. `sweeps/dpdfd_mnist_paper.yaml` has the letter.
    - *Images* may also come from a prior drawn by rule, which spends nothing and does far better.

    Args:
        num_classes: See `DataFreeDistillation`.
        image_shape: See `DataFreeDistillation`.
        batch_size: B, synthetic images per step and teacher queries charged for it.
        teacher: See `DataFreeDistillation`. For `release: ensemble` the file of a `TeacherEnsemble`, or an
            `nn.ModuleList` in a script.
        annotator: Mechanism, noise and budget. Default: `GradientAnnotator` with C=1e-3, σ=100, `per_sample`.
        teacher_network: See `DataFreeDistillation`.
        private_data: See `DataFreeDistillation`.
        student: See `DataFreeDistillation`.
        generator: See `DataFreeDistillation`.
        images: See `DataFreeDistillation`.
        prior: See `DataFreeDistillation`.
        generator_warm_start: See `DataFreeDistillation`.
        gamma: γ; None is 1/C, so that a step moves the logits by about one.
        student_follows: `targets`, the cross-entropy to y_s as the paper has it; or `gradients`, the released gradients
            themselves, propagated back through the student. The former multiplies them by the softmax's Jacobian, which
            vanishes where the student is sure, right or wrong.
        dkd_alpha: Weight of the target-class part of decoupled distillation.
        dkd_beta: Weight of the other classes' part.
        one_hot_weight: Weight of the generator's cross-entropy to the student's own decision; 0 switches it off.
        balance_weight: α, of the entropy of the mean prediction; 0 switches it off.
        activation_weight: β, of the student's activations, which are made larger; 0 switches it off.
        activation_norm: `l1` mean absolute feature, or `l2` mean row norm (C Eq. 5).
        student_loss_weight: Weight of L_S in the generator's step (1 in the paper's line 14).
        student_optimizer: See `DataFreeDistillation`.
        student_lr_scheduler: See `DataFreeDistillation`.
        generator_optimizer: See `DataFreeDistillation`.

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
        images: Images = "generator",
        prior: ImagePrior | None = None,
        generator_warm_start: int = 0,
        gamma: float | None = None,
        student_follows: Literal["targets", "gradients"] = "targets",
        dkd_alpha: float = 1.0,
        dkd_beta: float = 8.0,
        one_hot_weight: float = 1.0,
        balance_weight: float = 5.0,
        activation_weight: float = 0.1,
        activation_norm: Literal["l1", "l2"] = "l1",
        student_loss_weight: float = 0.0,
        student_optimizer: OptimizerCallable | None = None,
        student_lr_scheduler: LRSchedulerCallable | None = None,
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
            generator=generator,
            images=images,
            prior=prior,
            generator_warm_start=generator_warm_start,
            student_optimizer=student_optimizer,
            student_lr_scheduler=student_lr_scheduler,
            generator_optimizer=generator_optimizer,
        )
        if gamma is not None and not gamma > 0:
            raise ValueError(f"gamma must be above 0 or null for 1/norm_bound, got {gamma}")
        if student_follows not in ("targets", "gradients"):
            raise ValueError(f"student_follows must be targets or gradients, got {student_follows!r}")
        self.gamma = 1 / annotator.norm_bound if gamma is None else gamma
        self.student_follows = student_follows
        self.dkd_alpha, self.dkd_beta = dkd_alpha, dkd_beta
        self.generator_terms = GeneratorTerms(
            one_hot_weight=one_hot_weight,
            balance_weight=balance_weight,
            activation_weight=activation_weight,
            activation_norm=activation_norm,
        )
        self.student_loss_weight = student_loss_weight

    @property
    def of_ensemble(self) -> bool:
        """Whether many teachers answer (Algorithm 2)."""
        return self.annotator.mechanism.of_ensemble

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One iteration of Algorithm 1. `batch` is a step index: no data set stands behind it."""
        assert self.draw_seed is not None
        with seeded(self.draw_seed, self.steps_done, self.global_rank, self.device):
            latents = self.draw_latents(self.steps_done)  # line 2
            images = self.draw_images(self.steps_done, latents)  # line 3
            targets = self.update_student(images)  # lines 4 to 12
            if latents is not None:
                self.update_generator(latents, targets[: len(latents)])  # lines 13 and 14
        self.log_privacy()
        self.steps_done += 1

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Lines 5 to 10: y_s, shape (B, c)."""
        step = self.gamma * self.annotator.annotate(self.output_gradients(outputs, images))
        if self.student_follows == "gradients":
            self.followed = step
        return F.softmax(outputs.float() - step, dim=1)

    def output_gradients(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Lines 5 and 6: ∂L_T/∂outputs for each row, float32. **Private** until annotated.

        Shape (B, c), or of every teacher of an ensemble (n, B, c).
        """
        answers = self.teacher.each(images) if self.of_ensemble else self.teacher.logits(images)
        rows = output_gradients(
            outputs.expand_as(answers).reshape(-1, self.num_classes),
            lambda free: decoupled_kd(
                free, answers.reshape(-1, self.num_classes), alpha=self.dkd_alpha, beta=self.dkd_beta
            ),
        )
        return rows.view_as(answers)

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_G of C Eq. 5 with a weight for each term, plus L_S if switched on; see `DataFreeDistillation`."""
        loss, logits = self.generator_terms(self.student, images)
        if self.student_loss_weight:
            loss = loss + self.student_loss_weight * soft_cross_entropy(logits, targets.detach()).mean()
        return loss
