"""A: differentially private data-free distillation by selective randomized response (DP-DFD)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation, Images
from lightning_modules.functional.losses import class_balance, expected_labels, one_hot_loss, soft_cross_entropy
from lightning_modules.networks.bn_statistics import logits_and_statistics
from lightning_modules.priors import ImagePrior
from lightning_modules.runtime.randomness import seeded, stream
from privacy.account import BudgetExceeded
from privacy.annotators.label import LabelAnnotator
from privacy.mechanisms.response import threshold_candidates

__all__ = ["LabelDP"]


class LabelDP(DataFreeDistillation):
    """Liu et al., *Privacy-Preserving Student Learning with Differentially Private Data-Free Distillation*, Alg. 1.

    A generator is pretrained against the teacher. Then come T stages, one epoch each: a stage's images are generated
    once, each is labelled once by randomized response over the classes that the student thinks possible, and the
    student is fitted to these labels while the generator is fine-tuned. Labels are kept through the stage, and in the
    checkpoints: looking at one again is free, drawing it again is charged again.

    Where the paper leaves a choice:

    - *The discriminator* is the teacher in the paper. Nothing bounds what a generator trained against it reveals, nor a
      student trained on its images: record-level ε is infinite, unless the teacher was trained by DP-SGD. `student`
      pretrains nothing and bounds the answers' ε; so does `images: prior`.
    - *The entropy term* of Eq. 2 is of the batch's mean prediction (class balance); per image it would contradict the
      first term.
    - *Fine-tuning on the stage's data*: Eq. 2 of the images generated anew from the stage's own latent inputs, plus the
      student's loss on their labels with `student_loss_weight`.

    Args:
        num_classes: See `DataFreeDistillation`.
        image_shape: See `DataFreeDistillation`.
        batch_size: Images per step; a stage has as many times more as an epoch has steps.
        teacher: See `DataFreeDistillation`.
        annotator: ε of one answer and budget. Default: `LabelAnnotator` with ε=1, charged for two candidates, the
            fewest that a threshold leaves.
        teacher_network: See `DataFreeDistillation`.
        private_data: See `DataFreeDistillation`.
        student: See `DataFreeDistillation`.
        generator: See `DataFreeDistillation`.
        images: See `DataFreeDistillation`.
        prior: See `DataFreeDistillation`.
        generator_warm_start: See `DataFreeDistillation`.
        threshold: t, the student probability above which a class is a candidate; None is the paper's 1/(2c).
        noise_correction: Fit the student to the classes that the noisy answers make likely (`expected_labels`): a
            "learning algorithm that is robust to random label noise", which the paper asks for without naming one.
            False fits it to the answers themselves.
        train_on: A stage's student is fitted to `stage`, that stage's data (Algorithm 1), or to the `union` of all so
            far.
        discriminator: What the generator is trained against, `teacher` or `student`.
        pretraining_steps: Steps of the generator against the teacher before the first stage.
        one_hot_weight: Weight of the generator's cross-entropy to the discriminator's own decision.
        balance_weight: α, of the entropy of the mean prediction.
        statistics_weight: β, of the distance to the teacher's BatchNorm statistics; not used with `student`.
        student_loss_weight: Weight of the student's loss on the stage's labels in fine-tuning.
        student_optimizer: See `DataFreeDistillation`.
        student_lr_scheduler: See `DataFreeDistillation`.
        generator_optimizer: See `DataFreeDistillation`.

    Raises:
        ValueError: A setting that has no meaning.
    """

    paper = "A"
    annotator: LabelAnnotator

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        teacher: str | nn.Module,
        annotator: LabelAnnotator | None = None,
        teacher_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        student: Callable[..., nn.Module] | None = None,
        generator: Callable[..., nn.Module] | None = None,
        images: Images = "generator",
        prior: ImagePrior | None = None,
        generator_warm_start: int = 0,
        threshold: float | None = None,
        noise_correction: bool = True,
        train_on: Literal["stage", "union"] = "stage",
        discriminator: Literal["teacher", "student"] = "teacher",
        pretraining_steps: int = 200,
        one_hot_weight: float = 1.0,
        balance_weight: float = 5.0,
        statistics_weight: float = 10.0,
        student_loss_weight: float = 0.0,
        student_optimizer: OptimizerCallable | None = None,
        student_lr_scheduler: LRSchedulerCallable | None = None,
        generator_optimizer: OptimizerCallable | None = None,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=annotator or LabelAnnotator(),
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
        if not isinstance(self.annotator, LabelAnnotator):
            raise ValueError(f"annotator must be a LabelAnnotator, got {type(self.annotator).__name__}")
        if self.annotator.smallest != 2:
            raise ValueError(
                f"annotator.smallest must be 2, the fewest candidates that a threshold leaves, got "
                f"{self.annotator.smallest}"
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(f"threshold must lie in [0, 1] or be null for 1/(2c), got {threshold}")
        if train_on not in ("stage", "union"):
            raise ValueError(f"train_on must be stage or union, got {train_on!r}")
        if discriminator not in ("teacher", "student"):
            raise ValueError(f"discriminator must be teacher or student, got {discriminator!r}")
        if images == "refined" and discriminator != "student":
            raise ValueError(
                f"images='refined' needs discriminator='student': refined images are post-processing of what was "
                f"released, and the pretraining against the private teacher is not, got discriminator={discriminator!r}"
            )
        if pretraining_steps < 0:
            raise ValueError(f"pretraining_steps must be 0 or more, got {pretraining_steps}")
        self.threshold = threshold
        self.noise_correction = noise_correction
        self.train_on = train_on
        self.discriminator = discriminator
        self.pretraining_steps = pretraining_steps
        self.one_hot_weight = one_hot_weight
        self.balance_weight = balance_weight
        self.statistics_weight = statistics_weight
        self.student_loss_weight = student_loss_weight
        #: What the student is fitted to: images (N, C, H, W) in half precision, their noisy labels (N,) and the
        #: candidates (N, c) that these were answered among.
        self.stage_images = torch.empty(0, *self.image_shape, dtype=torch.float16)
        self.stage_labels = torch.empty(0, dtype=torch.int64)
        self.stage_candidates = torch.empty(0, num_classes, dtype=torch.bool)
        self.stage_begin = self.stage_end = 0
        self._rows = torch.empty(0, dtype=torch.int64)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of a stage of Algorithm 1; the stage's data are made before its first."""
        assert self.draw_seed is not None
        with seeded(self.draw_seed, self.steps_done, self.global_rank, self.device):
            if self.steps_done == 0 and self.generator is not None and self.discriminator == "teacher":
                self.pretrain_generator()  # line 1
            if self.steps_done >= self.stage_end:
                self.begin_stage()  # line 2, a to c
            self._rows = self.next_rows()
            images = self.stage_images[self._rows].to(self.device).float()
            self.update_student(images)  # line 2, d
            latents = self.draw_latents(self.steps_done)
            if latents is not None:
                own = self.steps_done - self.stage_begin
                labels = self.stage_labels[-self._stage_rows :][own * self.batch_size :][: len(latents)]
                self.update_generator(latents, self._one_hot(labels))
        self.log_privacy()
        self.steps_done += 1

    def pretrain_generator(self) -> None:
        """Line 1: the generator alone, against the teacher as a fixed discriminator."""
        assert self.draw_seed is not None
        for step in range(self.pretraining_steps):
            draw = stream(self.draw_seed, step, self.global_rank, "pretraining")
            count = self.batch_size if self.images == "generator" else self.batch_size // 2
            latents = torch.randn(count, self.latent_dim, generator=draw).to(self.device)
            self.update_generator(latents, torch.empty(0, self.num_classes, device=self.device))

    @torch.no_grad()
    def begin_stage(self) -> None:
        """Lines 2a to 2c: D̂⁽ⁱ⁾, generated once and annotated once.

        Raises:
            BudgetExceeded: The target does not allow a whole stage: nothing is charged.
        """
        if self.annotator.affordable(limit=self.stage_calls) < self.stage_calls:
            raise BudgetExceeded(self.annotator.account.refusal(self.annotator.charge))
        images, labels, sets = [], [], []
        was_training = self.student.training
        self.student.eval()
        for step in range(self.steps_done, self.steps_done + self.stage_calls):
            # In half precision from the start: what is kept is what was labelled.
            drawn = self.draw_images(step, self.draw_latents(step)).half()
            candidates = self.candidates(self.student(drawn.float()))
            answers = self.annotator.annotate(self.teacher.logits(drawn.float()), candidates)
            images.append(drawn.cpu())
            labels.append(answers.cpu())
            sets.append(candidates.cpu())
        self.student.train(was_training)
        if self.train_on == "union":
            images.insert(0, self.stage_images)
            labels.insert(0, self.stage_labels)
            sets.insert(0, self.stage_candidates)
        self.stage_images, self.stage_labels, self.stage_candidates = (
            torch.cat(images),
            torch.cat(labels),
            torch.cat(sets),
        )
        self.stage_begin, self.stage_end = self.steps_done, self.steps_done + self.stage_calls

    def candidates(self, outputs: torch.Tensor) -> torch.Tensor:
        """Lines 5 to 7: I of each image, shape (B, c), bool, from the student's `outputs` alone."""
        return threshold_candidates(outputs.float().softmax(dim=1), threshold=self.threshold)

    @property
    def stage_calls(self) -> int:
        """Calls of the annotator that a stage makes: one for each of its steps, all of them at its start."""
        batches = self.trainer.num_training_batches
        # Infinite until the fit has its data: a resumed run takes its last stage's.
        return int(batches) if math.isfinite(batches) else max(1, self.stage_end - self.stage_begin)

    @property
    def _stage_rows(self) -> int:
        return (self.stage_end - self.stage_begin) * self.batch_size

    @property
    def next_calls(self) -> int:
        """A whole stage's at its start, none within it."""
        if self.steps_done < self.stage_end:
            return 0
        return self.stage_calls if self.stage_end else 1

    def affordable_calls(self, steps: int) -> int:
        """See `DataFreeDistillation.affordable_calls`; only whole stages are begun."""
        left = super().affordable_calls(steps - max(0, self.stage_end - self.steps_done))
        return left - left % max(1, self.stage_calls)

    def next_rows(self) -> torch.Tensor:
        """Which of the kept images this step is on, shape (B,), int64."""
        if self.train_on == "union":
            assert self.draw_seed is not None
            draw = stream(self.draw_seed, self.steps_done, self.global_rank, "union")
            return torch.randint(len(self.stage_labels), (self.batch_size,), generator=draw)
        begin = (self.steps_done - self.stage_begin) * self.batch_size
        return torch.arange(begin, begin + self.batch_size)

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Targets from the kept labels, shape (B, c): nothing is asked again.

        KL to a one-hot distribution, Eq. 3, is the cross-entropy.
        """
        labels = self.stage_labels[self._rows].to(self.device)
        if not self.noise_correction:
            return self._one_hot(labels)
        candidates = self.stage_candidates[self._rows].to(self.device)
        return expected_labels(outputs.float(), labels, candidates, epsilon=self.annotator.epsilon)

    def _one_hot(self, labels: torch.Tensor) -> torch.Tensor:
        return F.one_hot(labels, self.num_classes).float().to(self.device)

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_g of Eq. 2, and in fine-tuning the student's loss if switched on.

        Args:
            images: Generated images with their graph, shape (n, C, H, W).
            targets: Noisy labels as one-hot rows, shape (n, c); no rows in pretraining.
        """
        statistics = images.new_zeros(())
        if self.discriminator == "student":
            logits = self.student(images)
        else:
            network = self.teacher.unprotected(
                self.annotator, reason="the generator was trained against the private teacher"
            ).to(images.device)
            if self.statistics_weight:
                logits, statistics = logits_and_statistics(network, images)
            else:
                logits = network(images)
        loss = self.one_hot_weight * one_hot_loss(logits.float()) + self.balance_weight * class_balance(logits.float())
        loss = loss + self.statistics_weight * statistics
        if self.student_loss_weight and len(targets):
            outputs = logits if self.discriminator == "student" else self.student(images)
            loss = loss + self.student_loss_weight * soft_cross_entropy(outputs.float(), targets).mean()
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the stage's images and labels, which a resumed run must not draw again."""
        super().on_save_checkpoint(checkpoint)
        rows = slice(None) if self.train_on == "union" or self.steps_done < self.stage_end else slice(0)
        checkpoint["stage"] = {
            "images": self.stage_images[rows],
            "labels": self.stage_labels[rows],
            "candidates": self.stage_candidates[rows],
            "begin": self.stage_begin,
            "end": self.stage_end,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        stage = checkpoint["stage"]
        self.stage_images, self.stage_labels = stage["images"], stage["labels"]
        self.stage_candidates = stage["candidates"]
        self.stage_begin, self.stage_end = int(stage["begin"]), int(stage["end"])
