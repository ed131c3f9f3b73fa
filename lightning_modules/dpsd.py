"""D: differentially private synthetic distillation (DPSD), its data-sensitive and its label-sensitive switch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation, Images
from lightning_modules.functional.candidates import CandidateSchedule, LinearCandidates
from lightning_modules.functional.generator_terms import GeneratorTerms
from lightning_modules.functional.losses import (
    decoupled_kd,
    expected_labels,
    kd,
    output_gradients,
    soft_cross_entropy,
)
from lightning_modules.priors import ImagePrior
from lightning_modules.runtime.randomness import seeded
from privacy.annotators import GradientAnnotator
from privacy.annotators.label import LabelAnnotator
from privacy.mechanisms.response import top_k_candidates

__all__ = ["DPSD"]


class DPSD(DataFreeDistillation):
    """Liu et al., *Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation*, Alg. 1.

    As C, with two switches for what is annotated. *Data*: gradients of decoupled distillation by the student's outputs,
    masked to their k largest entries, bounded and noised. *Label*: the teacher's class by randomized response over the
    student's k largest outputs. The generator is trained against the student, and with it its latent inputs Z, which
    are drawn once and kept.

    Where the paper leaves a choice, or does not work:

    - *Outputs are logits* and gradients are of each row's own loss, as in `DPDFD`; Eq. 3's one noised mean for the
      whole batch is `release: batch_mean_rows`, which distils nothing.
    - *k from the first step on* (`FixedCandidates`) collapses; the default schedule begins with all classes.
    - *Z alone* shows the student the same few images again and again; `fresh_latents` draws new ones each step, as C.

    Args:
        num_classes: See `DataFreeDistillation`.
        image_shape: See `DataFreeDistillation`.
        batch_size: b, synthetic images per step and teacher queries charged for it.
        teacher: See `DataFreeDistillation`.
        annotator: `GradientAnnotator` for the data switch, `LabelAnnotator` for the label switch, whose `top_k` and
            `smallest` are the paper's k. Default: the one that `privacy` names, with k = 3 (or c where that is less).
        privacy: The paper's switch; None takes what the annotator is for.
        teacher_network: See `DataFreeDistillation`.
        private_data: See `DataFreeDistillation`.
        student: See `DataFreeDistillation`.
        generator: See `DataFreeDistillation`.
        images: See `DataFreeDistillation`.
        prior: See `DataFreeDistillation`.
        generator_warm_start: See `DataFreeDistillation`.
        discriminator: What the generator is trained against. `teacher` is the paper's DPSD-T: nothing bounds what its
            images, and a student trained on them, reveal, unless the teacher was trained by DP-SGD.
        fresh_latents: Draw new latent inputs each step in place of the persistent Z; `images: refined` always draws
            new images of the prior.
        schedule: Candidates over the course of the label switch. Default: `LinearCandidates`.
        noise_correction: Fit the student to the classes that the noisy answers make likely (`expected_labels`), in
            place of the answers themselves as the paper does. Computed from released answers alone.
        distillation: Loss of the data switch: `dkd` decoupled, or `kd` classic (the paper's Fig. 6).
        gamma: γ of Eq. 3; None is 1/β, so that a step moves the logits by about one.
        student_follows: `targets`, the cross-entropy to y_s as the paper has it; or `gradients`, the released gradients
            themselves, propagated back through the student. The former multiplies them by the softmax's Jacobian, which
            vanishes where the student is sure, right or wrong. Data switch only.
        dkd_alpha: Weight of the target-class part of decoupled distillation.
        dkd_beta: λ, weight of the other classes' part.
        one_hot_weight: See `GeneratorTerms`.
        balance_weight: See `GeneratorTerms`.
        activation_weight: See `GeneratorTerms`.
        activation_norm: See `GeneratorTerms`.
        student_loss_weight: Weight of L_s in the generator's step (1 in the paper).
        student_optimizer: See `DataFreeDistillation`.
        student_lr_scheduler: See `DataFreeDistillation`.
        generator_optimizer: See `DataFreeDistillation`; it steps Z as well.

    Raises:
        ValueError: A setting that has no meaning, or an annotator that is not for the switch.
    """

    paper = "D"
    annotator: GradientAnnotator | LabelAnnotator

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        teacher: str | nn.Module,
        annotator: GradientAnnotator | LabelAnnotator | None = None,
        privacy: Literal["data", "label"] | None = None,
        teacher_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        student: Callable[..., nn.Module] | None = None,
        generator: Callable[..., nn.Module] | None = None,
        images: Images = "generator",
        prior: ImagePrior | None = None,
        generator_warm_start: int = 0,
        discriminator: Literal["student", "teacher"] = "student",
        fresh_latents: bool = False,
        schedule: CandidateSchedule | None = None,
        noise_correction: bool = True,
        distillation: Literal["kd", "dkd"] = "dkd",
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
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=_annotator(annotator, privacy, k=min(3, num_classes)),
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
        for name, value, allowed in (
            ("discriminator", discriminator, ("student", "teacher")),
            ("distillation", distillation, ("kd", "dkd")),
            ("student_follows", student_follows, ("targets", "gradients")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
        if gamma is not None and not gamma > 0:
            raise ValueError(f"gamma must be above 0 or null for 1/norm_bound, got {gamma}")
        if student_follows == "gradients" and not isinstance(self.annotator, GradientAnnotator):
            raise ValueError("student_follows='gradients' needs the data switch: labels have no gradients to follow")
        self.student_follows = student_follows
        if isinstance(self.annotator, GradientAnnotator):
            self.gamma = 1 / self.annotator.norm_bound if gamma is None else gamma
        if images == "refined" and discriminator != "student":
            raise ValueError(
                f"images='refined' needs discriminator='student': refined images are post-processing of what was "
                f"released, got discriminator={discriminator!r}"
            )
        self.discriminator = discriminator
        self.noise_correction = noise_correction
        self.distillation = distillation
        self.dkd_alpha, self.dkd_beta = dkd_alpha, dkd_beta
        self.generator_terms = GeneratorTerms(
            one_hot_weight=one_hot_weight,
            balance_weight=balance_weight,
            activation_weight=activation_weight,
            activation_norm=activation_norm,
        )
        self.student_loss_weight = student_loss_weight
        self.schedule = schedule or LinearCandidates()
        self.latents: nn.Parameter | None = None
        if self.generator is not None and images != "refined" and not fresh_latents:
            count = batch_size if images == "generator" else batch_size // 2
            self.latents = nn.Parameter(torch.randn(count, self.latent_dim))  # line 1: Z

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One iteration of Algorithm 1. `batch` is a step index: no data set stands behind it."""
        assert self.draw_seed is not None
        with seeded(self.draw_seed, self.steps_done, self.global_rank, self.device):
            latents = self.draw_latents(self.steps_done) if self.latents is None else self.latents
            images = self.draw_images(self.steps_done, latents)  # line 3
            targets = self.update_student(images)  # lines 4 and 5
            if latents is not None:
                self.update_generator(latents, targets[: len(latents)])  # line 6
        self.log_privacy()
        self.steps_done += 1

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Line 4: ŷ of Eq. 6, shape (B, c)."""
        annotator = self.annotator
        if isinstance(annotator, GradientAnnotator):
            step = self.gamma * annotator.annotate(self.output_gradients(outputs, images))
            if self.student_follows == "gradients":
                self.followed = step
            return F.softmax(outputs.float() - step, dim=1)
        candidates, size = self.candidates(outputs)
        answers = annotator.annotate(
            self.teacher.logits(images), candidates, size=size if self.schedule.fixed_beforehand else None
        )
        if self.noise_correction:
            return expected_labels(outputs.float(), answers, candidates, epsilon=annotator.epsilon)
        return F.one_hot(answers, self.num_classes).float()

    def candidates(self, outputs: torch.Tensor) -> tuple[torch.Tensor, int]:
        """I of each image, shape (B, c), bool, and their size: from the student's `outputs` and the step alone."""
        assert isinstance(self.annotator, LabelAnnotator)
        size = self.schedule.size(
            outputs.float().softmax(dim=1), step=self.steps_done, smallest=self.annotator.smallest
        )
        self.log("train/candidates", float(size))
        return top_k_candidates(outputs, k=size), size

    def output_gradients(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """∂L_t/∂Φ_s of Eqs. 2 and 3 for each row, shape (B, c), float32. **Private** until annotated."""
        answers = self.teacher.logits(images)
        if self.distillation == "kd":
            return output_gradients(outputs, lambda free: kd(free, answers))
        return output_gradients(
            outputs, lambda free: decoupled_kd(free, answers, alpha=self.dkd_alpha, beta=self.dkd_beta)
        )

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_g of Eq. 8 with a weight for each term, plus L_s if switched on; see `DataFreeDistillation`."""
        if self.discriminator == "student":
            loss, logits = self.generator_terms(self.student, images)
        else:
            network = self.teacher.unprotected(
                self.annotator, reason="the generator was trained against the private teacher (DPSD-T)"
            ).to(images.device)
            loss, _ = self.generator_terms(network, images)
            logits = self.student(images).float() if self.student_loss_weight else images
        if self.student_loss_weight:
            loss = loss + self.student_loss_weight * soft_cross_entropy(logits, targets.detach()).mean()
        return loss

    def generator_parameters(self) -> Iterator[nn.Parameter]:
        """The generator's and its latent inputs'."""
        yield from super().generator_parameters()
        if self.latents is not None:
            yield self.latents


def _annotator(
    given: GradientAnnotator | LabelAnnotator | None, privacy: Literal["data", "label"] | None, *, k: int
) -> GradientAnnotator | LabelAnnotator:
    if privacy not in ("data", "label", None):
        raise ValueError(f"privacy must be data or label, got {privacy!r}")
    if given is None:
        return LabelAnnotator(smallest=k) if privacy == "label" else GradientAnnotator(top_k=k)
    if isinstance(given, GradientAnnotator) and given.mechanism.of_ensemble:
        raise ValueError("annotator.release must not be ensemble for DPSD, which has one teacher; DPDFD takes many")
    fits = "data" if isinstance(given, GradientAnnotator) else "label"
    if privacy not in (fits, None):
        raise ValueError(
            f"privacy={privacy!r} does not go with the annotator {type(given).__name__}, which is for {fits}: take "
            f"{'LabelAnnotator' if privacy == 'label' else 'GradientAnnotator'}, or leave one of the two out"
        )
    return given
