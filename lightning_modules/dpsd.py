"""DPSD: differentially private synthetic distillation with its data-sensitive and label-sensitive switches."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from lightning_modules.base import DataFreeDistillation
from lightning_modules.losses.functional import GeneratorLoss
from lightning_modules.losses.targets import Annotation, GradientTargets, LabelTargets, class_shares
from lightning_modules.networks.classifiers import start_by_xavier
from lightning_modules.training.manual_optimization import OptimizedGroup
from lightning_modules.training.run import share_of
from privacy.checks import check_choice, settings_of
from privacy.mechanisms import NoisyGradients, NoisyLabels

_RATE, _FORGOTTEN = 0.5, 0.01
"""Of `balanced_answers`: the offset of a class whose share stays at s converges to 50·(s - 1/c)."""


class DPSD(DataFreeDistillation):
    """Liu et al., *Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation*, Alg. 1.

    Like `DPDFD`, with two switches for what is annotated. *Data*: gradients of decoupled distillation with respect to
    the student's outputs, masked to their k largest entries, bounded and noised. *Label*: the teacher's class, by
    randomized response over the student's k largest outputs. The generator is trained against the student, together
    with its latent inputs Z, which are drawn once and kept.

    Where the paper leaves a choice, or does not work:

    - *Outputs are logits* and gradients are of each sample's own loss, as in `DPDFD`; Eq. 3's one noised mean for the
      whole batch is `release: batch_mean_rows`, which distils nothing. `sweeps/methods/dpsd_mnist_paper.yaml` has the
      printed settings.
    - *Eq. 2* differs from the loss it cites; `gradient_targets.loss: dkd_as_printed` is Eq. 2 to the letter.
    - *A fixed k* (`FixedCandidates`) collapses; the default schedule begins with all classes.
    - *Using only Z* shows the student the same few images again and again; `fresh_latents` draws new ones each step, as
      `DPDFD` does.

    Args:
        mechanism: `NoisyGradients` for the data switch, `NoisyLabels` for the label switch, whose `top_k` and
            `smallest` are the paper's k. Default: gradients, with k = min(3, c).
        discriminator: What the generator is trained against. `teacher` is the paper's DPSD-T: nothing bounds what its
            images, and a student trained on them, reveal, unless the teacher was trained by DP-SGD.
        fresh_latents: Draw new latent inputs each step instead of keeping Z.
        xavier: Start student and generator by Xavier's method, as printed, instead of as their layers do.
        gradient_targets: Data switch: the distillation loss, and how the student uses its noisy gradient.
        label_targets: Label switch: candidates over time, and how the student uses noisy labels.
        balanced_answers: Label switch with all classes as candidates: subtract from the teacher's logits how often
            earlier responses gave each class. Classes that a generator seldom shows are then answered for the images
            most like them; otherwise the noise hides them from the student.
        generator_loss: The generator's loss.
        **shared: See `DataFreeDistillation`.

    Raises:
        ValueError: An invalid setting, or a mechanism that is not for the switch.
    """

    paper = "DPSD"
    mechanisms = (NoisyGradients, NoisyLabels)
    mechanism: NoisyGradients | NoisyLabels

    def __init__(
        self,
        *,
        num_classes: int,
        mechanism: NoisyLabels | NoisyGradients | None = None,
        discriminator: Literal["student", "teacher"] = "student",
        fresh_latents: bool = False,
        xavier: bool = False,
        gradient_targets: GradientTargets = GradientTargets(),
        label_targets: LabelTargets = LabelTargets(),
        balanced_answers: bool = False,
        generator_loss: GeneratorLoss = GeneratorLoss(),
        **shared: Any,
    ) -> None:
        mechanism = mechanism or NoisyGradients(top_k=min(3, num_classes))
        if isinstance(mechanism, NoisyGradients) and mechanism.way.of_ensemble:
            raise ValueError("mechanism.release must not be ensemble for DPSD, which has one teacher; DPDFD takes many")
        super().__init__(num_classes=num_classes, mechanism=mechanism, **shared)
        check_choice("discriminator", discriminator, ("student", "teacher"))
        self.discriminator = discriminator
        self.gradient_targets = settings_of(GradientTargets, gradient_targets, name="gradient_targets")
        self.gradient_targets.require(self.mechanism)
        self.label_targets = settings_of(LabelTargets, label_targets, name="label_targets")
        self.generator_criterion = settings_of(GeneratorLoss, generator_loss, name="generator_loss")
        if balanced_answers and getattr(self.mechanism, "smallest", None) != num_classes:
            raise ValueError(
                f"balanced_answers needs a NoisyLabels with all {num_classes} classes as candidates "
                f"(mechanism.smallest: {num_classes}), got {type(self.mechanism).__name__} with "
                f"{getattr(self.mechanism, 'smallest', 'none')}"
            )
        self.register_buffer("offsets", torch.zeros(num_classes) if balanced_answers else None)
        self.offsets: torch.Tensor | None
        if xavier:
            self.apply(start_by_xavier)
        self.latents: nn.Parameter | None = None
        if self.generator is not None and not fresh_latents:
            self.latents = nn.Parameter(torch.randn(self.images.generated, self.images.latent_dim))  # line 1: Z

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One iteration of Algorithm 1. `batch` is only a step index."""
        with self.draws.seeded(self.steps_done):
            latents = self.draw_latents(self.steps_done)
            images = self.draw_images(self.steps_done, latents)  # line 3
            targets = self.update_student(images)  # lines 4 and 5
            if latents is not None:
                self.update_generator(images[: len(latents)], targets[: len(latents)])  # line 6
        self.steps_done += 1

    def draw_latents(self, step: int) -> torch.Tensor | None:
        """See `DataFreeDistillation.draw_latents`; this process's share of Z if it is kept."""
        if self.latents is None:
            return super().draw_latents(step)
        return self.latents[share_of(len(self.latents), self.processes)]

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Line 4: ŷ of Eq. 6, shape (B, c)."""
        mechanism, logits = self.mechanism, self.teacher.logits(images)
        if isinstance(mechanism, NoisyGradients):
            released = self.session.release(mechanism, self.gradient_targets.gradients(outputs, logits))
            return self.gradient_targets.annotation(outputs, released, mechanism)
        candidates, size = self.candidates(outputs)
        balanced = logits if self.offsets is None else logits - self.offsets
        labels = self.session.release(mechanism, balanced, candidates, size=size)
        if self.offsets is not None:  # see `balanced_answers`; of all processes' released labels
            shares = class_shares(self.gather_rows(labels), num_classes=self.num_classes, epsilon=mechanism.epsilon)
            self.offsets.mul_(1 - _FORGOTTEN).add_((shares - 1 / self.num_classes).to(self.offsets), alpha=_RATE)
        return self.label_targets.annotation(outputs, labels, candidates, epsilon=mechanism.epsilon)

    def candidates(self, outputs: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        """See `LabelTargets.candidates`: sets I, from the student's `outputs` and the step only."""
        assert isinstance(self.mechanism, NoisyLabels)
        found = self.label_targets.candidates(outputs, step=self.steps_done, smallest=self.mechanism.smallest)
        self.log_in_step("train/candidates", found[0].sum(dim=1).float().mean())
        return found

    @property
    def needs_gradients_of_teacher(self) -> str | None:
        against = self.generator is not None and self.discriminator == "teacher"
        return "discriminator is teacher (DPSD-T)" if against else None

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_g of Eq. 8 with a weight per term, plus L_s if it has one; see `DataFreeDistillation`."""
        of_teacher = self.discriminator == "teacher"
        reason = "the generator was trained against the private teacher (DPSD-T)"
        discriminator = self.unprotected_teacher(reason) if of_teacher else self.student
        return self.generator_criterion(discriminator, images, self.student, targets)

    def logged_names(self) -> set[str]:
        return super().logged_names() | ({"train/candidates"} if isinstance(self.mechanism, NoisyLabels) else set())

    def reset_generator(self) -> None:
        """See `DataFreeDistillation.reset_generator`; also redraws its latent inputs."""
        super().reset_generator()
        if self.latents is not None:
            draw = self.draws.common.stream(self.steps_done, "reset")
            self.latents.data.copy_(torch.randn(self.latents.shape, generator=draw))

    def optimized_groups(self) -> dict[str, OptimizedGroup]:
        """See `DataFreeDistillation.optimized_groups`; the generator's includes its latent inputs."""
        groups = super().optimized_groups()
        if self.latents is not None:
            of_generator = groups["generator"]
            groups["generator"] = of_generator._replace(parameters=[*of_generator.parameters, self.latents])
        return groups
