"""LabelDP: differentially private data-free distillation by selective randomized response (DP-DFD)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lightning_modules.base import DataFreeDistillation
from lightning_modules.losses.functional import GeneratorLoss, distance_to_statistics
from lightning_modules.losses.targets import Annotation, LabelTargets
from lightning_modules.networks.network import evaluating
from lightning_modules.training.manual_optimization import joined
from lightning_modules.training.run import share_of
from privacy.account import BudgetExceeded
from privacy.checks import check_choice, check_count, check_number, settings_of
from privacy.mechanisms import NoisyLabels
from privacy.mechanisms.noisy_labels import threshold_candidates


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Settings for labelling a stage's images and for fitting the student.

    Attributes:
        threshold: t, the student probability above which a class is a candidate; null is the paper's 1/(2c).
        noise_correction: Fit the student to the class probabilities given the noisy labels (`label_evidence`), a
            "learning algorithm that is robust to random label noise", as the paper requires without naming one. False
            fits it to the labels themselves.
        train_on: Fit the student to the data of its `stage` (Algorithm 1), or to the `union` of all stages so far.
    """

    threshold: float | None = None
    noise_correction: bool = True
    train_on: Literal["stage", "union"] = "stage"

    def __post_init__(self) -> None:
        check_number("stages.threshold", self.threshold, least=0, most=1, null="1/(2c)")
        check_choice("stages.train_on", self.train_on, ("stage", "union"))


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining(GeneratorLoss):
    """Settings of the generator's training and loss (LabelDP Eq. 2); for other weights see `GeneratorLoss`.

    Attributes:
        discriminator: `teacher`, as printed, or `student`.
        pretraining_steps: Steps of the generator against the teacher before the first stage.
        activation_weight: 0: Eq. 2 has no such term.
        statistics_weight: β, weight of the distance to the teacher's BatchNorm statistics; not used with `student`.
        student_loss_weight: 0: Eq. 2 has no such term.
    """

    setting = "generator_training"

    discriminator: Literal["teacher", "student"] = "teacher"
    pretraining_steps: int = 200
    activation_weight: float = 0.0
    statistics_weight: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("generator_training.discriminator", self.discriminator, ("teacher", "student"))
        check_count("generator_training.pretraining_steps", self.pretraining_steps, minimum=0)
        check_number("generator_training.statistics_weight", self.statistics_weight, least=0)
        check_number("generator_training.student_loss_weight", self.student_loss_weight, least=0, most=0)


class LabelDP(DataFreeDistillation):
    """Liu et al., *Privacy-Preserving Student Learning with Differentially Private Data-Free Distillation*, Alg. 1.

    A generator is pretrained against the teacher. Then come T stages, one epoch each: a stage's images are generated
    once, each is labelled once by randomized response over the classes that the student thinks possible, and the
    student is fitted to these labels while the generator is fine-tuned. Labels are kept throughout the stage and in
    checkpoints: reading one again is free, drawing it again is charged again. <https://arxiv.org/abs/2409.12384>

    Where the paper leaves a choice:

    - *The discriminator* is the teacher in the paper. Nothing bounds what a generator trained against it reveals, nor a
      student trained on its images: record-level ε is infinite, unless the teacher was trained by DP-SGD. `student`
      pretrains nothing and bounds the labels' ε; so does `images.source: prior`.
    - *The entropy term* of Eq. 2 is taken of the batch's mean prediction (class balance); per image it would contradict
      the first term.
    - *Fine-tuning on the stage's data* is Eq. 2 on images generated anew from the stage's latent inputs.

    Args:
        mechanism: ε of one label. Default: `NoisyLabels` with ε=1, charged for two candidates, the
            fewest that a threshold leaves.
        stages: How a stage's images are labelled, and what the student is fitted to.
        generator_training: What the generator is trained against, and its loss.
        **shared: See `DataFreeDistillation`.
    """

    paper = "LabelDP"
    mechanisms = (NoisyLabels,)
    mechanism: NoisyLabels

    def __init__(
        self,
        *,
        mechanism: NoisyLabels = NoisyLabels(),
        stages: Stages = Stages(),
        generator_training: GeneratorTraining = GeneratorTraining(),
        **shared: Any,
    ) -> None:
        super().__init__(mechanism=mechanism, **shared)
        if self.mechanism.smallest != 2:
            raise ValueError(
                f"mechanism.smallest must be 2, the fewest candidates above a threshold, got {self.mechanism.smallest}"
            )
        self.stages = settings_of(Stages, stages, name="stages")
        self.generator_training = settings_of(GeneratorTraining, generator_training, name="generator_training")
        #: What the student is fitted to: images (N, C, H, W) in half precision, their noisy labels (N,), and the
        #: candidates (N, c) that these were drawn among.
        self.stage_images = torch.empty(0, *self.image_shape, dtype=torch.float16)
        self.stage_labels = torch.empty(0, dtype=torch.int64)
        self.stage_candidates = torch.empty(0, self.num_classes, dtype=torch.bool)
        self.stage_begin = self.stage_end = 0
        self._rows = torch.empty(0, dtype=torch.int64)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of a stage of Algorithm 1; the stage's data are made before its first step."""
        with self.draws.seeded(self.steps_done):
            if self.steps_done == 0 and self._against_teacher:
                self.pretrain_generator()  # line 1
            if self.steps_done >= self.stage_end:
                self.begin_stage()  # line 2, a to c
            self._rows = self.next_rows()
            images = self.stage_images[self._rows].to(self.device).float()
            self.update_student(images)  # line 2, d
            latents = self.draw_latents(self.steps_done)
            every = self.images.reset_every
            if latents is not None and not (every and self.stage_end % every == 0):  # else reset before it is used
                self.update_generator(self.images.generate(latents))
        self.steps_done += 1

    def reset_generator(self) -> None:
        """See `DataFreeDistillation.reset_generator`; also pretrains the new generator."""
        super().reset_generator()
        if self._against_teacher:
            with self.draws.seeded(self.steps_done):
                self.pretrain_generator()

    def pretrain_generator(self) -> None:
        """Line 1: trains the generator alone, against the teacher as a fixed discriminator."""
        for step in range(self.generator_training.pretraining_steps):
            draw = self.draws.stream(self.steps_done + step, "pretraining")
            latents = torch.randn(self.images.generated, self.images.latent_dim, generator=draw).to(self.device)
            self.update_generator(self.images.generate(latents), scheduled=False)

    @torch.no_grad()
    def begin_stage(self) -> None:
        """Lines 2a to 2c: D̂⁽ⁱ⁾, generated once and annotated once.

        Raises:
            BudgetExceeded: The target does not allow a whole stage: nothing is charged.
        """
        if self.session.affordable(limit=self.stage_calls) < self.stage_calls:
            raise BudgetExceeded(self.session.account.refusal(self.session.cost))
        union = self.stages.train_on == "union"
        parts = [(self.stage_images, self.stage_labels, self.stage_candidates)] if union else []
        with evaluating(self.student):
            for step in range(self.steps_done, self.steps_done + self.stage_calls):
                # In half precision from the start, so that what is kept is what was labelled.
                images = self.draw_images(step, self.draw_latents(step)).half()
                candidates = self.candidates(self.student(images.float()))
                labels = self.session.release(self.mechanism, self.teacher.logits(images.float()), candidates)
                # Every process keeps the rows of all, so that a checkpoint holds the whole stage.
                parts.append((self.gather_rows(images), self.gather_rows(labels), self.gather_rows(candidates)))
        self.stage_images, self.stage_labels, self.stage_candidates = map(joined, zip(*parts, strict=True))
        self.stage_begin, self.stage_end = self.steps_done, self.steps_done + self.stage_calls

    def candidates(self, outputs: torch.Tensor) -> torch.Tensor:
        """Lines 5 to 7: candidate set I of each image, shape (B, c), bool, from the student's `outputs` only."""
        return threshold_candidates(outputs.float().softmax(dim=1), threshold=self.stages.threshold)

    @property
    def stage_calls(self) -> int:
        """Number of calls of the mechanism that a stage makes at its start: one for each of its steps."""
        batches = self.trainer.num_training_batches
        # Infinite until the fit has its data; a resumed run then takes the number of its last stage.
        return int(batches) if math.isfinite(batches) else max(1, self.stage_end - self.stage_begin)

    @property
    def _against_teacher(self) -> bool:
        return self.generator is not None and self.generator_training.discriminator == "teacher"

    @property
    def needs_gradients_of_teacher(self) -> str | None:
        return "generator_training.discriminator is teacher" if self._against_teacher else None

    @property
    def next_calls(self) -> int:
        """All calls of a stage at its start, none within it."""
        if self.steps_done < self.stage_end:
            return 0
        return self.stage_calls if self.stage_end else 1

    def calls_ahead(self, steps: int | None) -> int | None:
        """See `DataFreeDistillation.calls_ahead`; only whole stages are begun.

        Stages of a resumed run need not end with its epochs: a stage is charged when it begins, whether or not the run
        reaches its end.
        """
        if steps is None:
            return super().calls_ahead(steps)
        calls = max(1, self.stage_calls)
        yet = max(0, steps - max(self.steps_done, self.stage_end))
        left = self.session.affordable(limit=-(-yet // calls) * calls)
        return left - left % calls

    def next_rows(self) -> torch.Tensor:
        """Positions of the kept images that this process uses in this step, shape (B,), int64."""
        if self.stages.train_on == "union":
            draw = self.draws.stream(self.steps_done, "union")
            return torch.randint(len(self.stage_labels), (self.images.rows,), generator=draw)
        labelled = len(self.stage_labels) - (self.stage_end - self.steps_done) * self.batch_size
        return labelled + torch.arange(self.batch_size)[share_of(self.batch_size, self.processes)]

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Targets (B, c) from the kept labels, for Eq. 3: its KL is the cross-entropy up to a constant."""
        kept = (self.stage_labels, self.stage_candidates)
        labels, candidates = (values[self._rows].to(self.device) for values in kept)
        targets = LabelTargets(noise_correction=self.stages.noise_correction)
        return targets.annotation(outputs, labels, candidates, epsilon=self.mechanism.epsilon)

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_g of Eq. 2 on generated images (n, C, H, W), with their graph; uses no targets."""
        terms = self.generator_training
        if not self._against_teacher:
            return terms(self.student, images)
        teacher = self.unprotected_teacher("the generator was trained against the private teacher")
        if not terms.statistics_weight:
            return terms(teacher, images)
        with distance_to_statistics(teacher) as distance:
            loss = terms(teacher, images)
        return loss + terms.statistics_weight * distance()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Also saves the stage's images and labels, which a resumed run must not draw again."""
        super().on_save_checkpoint(checkpoint)
        needed = self.stages.train_on == "union" or self.steps_done < self.stage_end
        tensors = {"images": self.stage_images, "labels": self.stage_labels, "candidates": self.stage_candidates}
        checkpoint["stage"] = {
            # Not slices: saving one saves the whole tensor behind it.
            **{name: value if needed else torch.empty_like(value[:0]) for name, value in tensors.items()},
            "begin": self.stage_begin,
            "end": self.stage_end,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        stage = checkpoint["stage"]
        self.stage_images, self.stage_labels = stage["images"], stage["labels"]
        self.stage_candidates = stage["candidates"]
        self.stage_begin, self.stage_end = int(stage["begin"]), int(stage["end"])
