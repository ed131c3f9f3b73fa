"""Distillation without noise, of a teacher whose own training bounds what it reveals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from rich.progress import track
from torch import nn

from lightning_modules.components import ImagePrior
from lightning_modules.components.losses import kd, logit_distance
from lightning_modules.distillation import DataFreeDistillation
from lightning_modules.randomness import seeded, stream
from privacy.answer_annotator import AnswerAnnotator

__all__ = ["Distillation"]


class Distillation(DataFreeDistillation):
    """A student of a teacher that was trained by DP-SGD, on images drawn by rule: post-processing, free of charge.

    The teacher answers a pool of synthetic images once; the student is then fitted to the kept answers for as long as
    wanted. Where the teacher was trained without privacy the guarantee says so: ε is infinite.

    Args:
        num_classes: See `DataFreeDistillation`.
        image_shape: See `DataFreeDistillation`.
        batch_size: Images per step.
        teacher: See `DataFreeDistillation`.
        annotator: Budget and ledger. Default: `AnswerAnnotator`.
        teacher_network: See `DataFreeDistillation`.
        private_data: See `DataFreeDistillation`.
        student: See `DataFreeDistillation`. One with a fixed `front` and `after_front` (such as `ScatteringClassifier`)
            has the front computed once.
        prior: Where the images come from. Default: `StrokePrior`.
        pool_size: Images that the teacher answers, rounded up to whole batches.
        balance: Images are drawn with a weight of n_y to the power of minus this, where n_y of the pool are of the
            class that the teacher answered: 0 takes them as they come, 1 every class equally often.
        loss: `logits`, squared distance of logits up to a constant of each row; or `kl`, at temperature 1.
        student_optimizer: Default: Adam, rate 1e-3.
        student_lr_scheduler: See `DataFreeDistillation`.

    Raises:
        ValueError: A setting that has no meaning.
    """

    annotator: AnswerAnnotator

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        teacher: str | nn.Module,
        annotator: AnswerAnnotator | None = None,
        teacher_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        student: Callable[..., nn.Module] | None = None,
        prior: ImagePrior | None = None,
        pool_size: int = 50_000,
        balance: float = 0.5,
        loss: Literal["logits", "kl"] = "logits",
        student_optimizer: OptimizerCallable | None = None,
        student_lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=annotator or AnswerAnnotator(),
            teacher=teacher,
            teacher_network=teacher_network,
            private_data=private_data,
            student=student,
            images="prior",
            prior=prior,
            student_optimizer=student_optimizer,
            student_lr_scheduler=student_lr_scheduler,
        )
        if not isinstance(self.annotator, AnswerAnnotator):
            raise ValueError(f"annotator must be an AnswerAnnotator, got {type(self.annotator).__name__}")
        if pool_size < 1:
            raise ValueError(f"pool_size must be 1 or more, got {pool_size}")
        if not 0 <= balance <= 1:
            raise ValueError(f"balance must lie in [0, 1], got {balance}")
        if loss not in ("logits", "kl"):
            raise ValueError(f"loss must be logits or kl, got {loss!r}")
        self.pool_calls = -(-pool_size // batch_size)
        self.balance = balance
        self.loss: Literal["logits", "kl"] = loss
        self._front = getattr(self.student, "front", None)
        self._pool: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def next_calls(self) -> int:
        """The whole pool before the first step of a fit, none after it."""
        return self.pool_calls if self._pool is None else 0

    def affordable_calls(self, steps: int) -> int:
        """See `DataFreeDistillation.affordable_calls`; only a whole pool is begun."""
        if self._pool is not None or steps <= self.steps_done:
            return 0
        return self.pool_calls if self.annotator.affordable(limit=self.pool_calls) == self.pool_calls else 0

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step on kept answers. `batch` is a step index: no data set stands behind it."""
        assert self.draw_seed is not None
        if self._pool is None:
            self._pool = self.answer_pool()
        inputs, answers, weights = self._pool
        draw = stream(self.draw_seed, self.steps_done, self.global_rank, "pool")
        rows = torch.multinomial(weights, self.batch_size, replacement=True, generator=draw)
        with seeded(self.draw_seed, self.steps_done, self.global_rank, self.device):
            self.fit_student(inputs[rows].to(self.device).float(), answers[rows].to(self.device))
        self.log_privacy()
        self.steps_done += 1

    @torch.no_grad()
    def answer_pool(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Images, or the student's fixed features of them, in half precision; answers (n, c); weights (n,); on the CPU.

        A resumed run draws the same images and asks again: the ledger counts what was asked, at no further cost.
        """
        rank_zero_info(f"The teacher answers {self.pool_calls * self.batch_size:,} images once.")
        inputs, answers = [], []
        for call in track(range(self.pool_calls), description="answers", disable=not self.trainer.is_global_zero):
            # In half precision from the start: what is kept is what was answered.
            images = self.draw_images(call, None).half().float()
            answers.append(self.annotator.annotate(self.teacher.logits(images)).cpu())
            kept = images if self._front is None else self._front(images)
            inputs.append(kept.half().cpu())
        logits = torch.cat(answers)
        classes = logits.argmax(dim=1)
        counts = torch.bincount(classes, minlength=self.num_classes).clamp_min(1)
        return torch.cat(inputs), logits, counts[classes].double().pow(-self.balance)

    def fit_student(self, inputs: torch.Tensor, answers: torch.Tensor) -> None:
        """One step of the student on images (or features of its front) and the teacher's logits (B, c)."""
        optimizer = self._optimizers()[0]
        with self.toggled_optimizer(optimizer):
            outputs = self.student(inputs) if self._front is None else self._after_front(inputs)
            distance = logit_distance if self.loss == "logits" else kd
            self.step_student(distance(outputs.float(), answers).mean())

    def _after_front(self, features: torch.Tensor) -> torch.Tensor:
        after: Any = self.student.after_front
        logits: torch.Tensor = after(features)
        return logits
