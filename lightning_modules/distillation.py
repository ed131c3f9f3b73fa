"""What all data-free methods share: student, private teacher kept apart, annotator, evaluation, resuming."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.callbacks import default_callbacks
from lightning_modules.components import SmallCNN, build_network
from lightning_modules.hyperparameters import keep_plain_hyperparameters
from lightning_modules.private_teacher import PrivateTeacher
from lightning_modules.runs import datamodule_of
from privacy.annotators import Annotator
from privacy.guarantees import Guarantee

__all__ = ["DataFreeDistillation"]


class DataFreeDistillation(LightningModule):
    """Base of the data-free methods. A subclass writes its paper's algorithm as one `training_step`.

    The teacher is a path, read when a fit begins. It is no submodule: it reaches no `state_dict`, checkpoint or
    logger, and
    `test` or `load_from_checkpoint` work where it does not exist. Nothing about it is used except through the
    annotator.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: B; linked from the data.
        annotator: The door through which the teacher's knowledge leaves.
        teacher: The teacher's checkpoint, or a network in a script.
        teacher_network: Builds the teacher where its file holds nothing but weights.
        private_data: Public name of the teacher's training data where its file does not say.
        student: Builds the student, called with those of `num_classes` and `image_shape` that it accepts. Default:
            `SmallCNN`.

    Attributes:
        paper: Letter of the paper in this project's documents.
        published_artefacts: What a subclass computes from the annotator's answers and may publish.
    """

    paper: ClassVar[str] = ""
    published_artefacts: tuple[str, ...] = ("student",)

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        annotator: Annotator,
        teacher: str | nn.Module,
        teacher_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        student: Callable[..., nn.Module] | None = None,
    ) -> None:
        super().__init__()
        # A network is neither a hyperparameter nor saved; Lightning would warn that it is.
        self.save_hyperparameters(ignore=["teacher"] if isinstance(teacher, nn.Module) else [])
        keep_plain_hyperparameters(self)
        self.automatic_optimization = False
        self.num_classes = num_classes
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.batch_size = batch_size
        self.annotator = annotator
        self.annotator.bind(batch_size=batch_size, num_classes=num_classes)
        source: str | PrivateTeacher
        if isinstance(teacher, nn.Module):
            # Wrapped at once: as an attribute it would become part of the state_dict, and of every pickle of this
            # module.
            source = PrivateTeacher(
                teacher, private_data=private_data or "training data of a teacher given in a script"
            )
        else:
            source = teacher
        self._teacher_source = (source, teacher_network, private_data)
        self._teacher: PrivateTeacher | None = None
        self.student = build_network(
            student or SmallCNN, num_classes=num_classes, image_shape=self.image_shape, name="model.student"
        )
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.steps_done = 0
        self._steps_before_batch = -1
        self.draw_seed: int | None = None
        self.planned_calls: int | None = None
        self.plan_changed = False
        self._restored: dict[str, Any] = {}

    @property
    def teacher(self) -> PrivateTeacher:
        """The private teacher, while a fit runs.

        Raises:
            RuntimeError: Outside of a fit.
        """
        if self._teacher is None:
            raise RuntimeError("the teacher is loaded when a fit begins; nothing else needs it")
        return self._teacher

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The student's logits, (N, C, H, W) → (N, c)."""
        logits: torch.Tensor = self.student(images)
        return logits

    def configure_callbacks(self) -> list[Callback]:
        """Budget stop, guarantee and figures, unless the trainer was given its own."""
        return default_callbacks(self.trainer)

    def setup(self, stage: str) -> None:
        """Loads the teacher for a fit, before any other work."""
        if stage != "fit" or self._teacher is not None:
            return
        source, network, private_data = self._teacher_source
        if isinstance(source, PrivateTeacher):
            source.require_usable(num_classes=self.num_classes, image_shape=self.image_shape)
            self._teacher = source
            return
        self._teacher = PrivateTeacher.load(
            source,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            network=network,
            private_data=private_data,
        )

    def on_fit_start(self) -> None:
        """Opens the ledger, takes over what a checkpoint remembers, and refuses a budget in which no step fits."""
        if self.trainer.world_size > 1:
            raise NotImplementedError(
                f"{type(self).__name__} charges for one process, got {self.trainer.world_size}: set --trainer.devices 1"
            )
        if self.draw_seed is None:
            self.draw_seed = torch.initial_seed()
        if not self.annotator.is_open:
            ledger = (
                None
                if self.teacher.path is None
                else self.teacher.path.with_name(self.teacher.path.name + ".ledger.jsonl")
            )
            records = self.teacher.num_records or getattr(datamodule_of(self.trainer), "num_records", None)
            self.annotator.open(
                private_data=self.teacher.private_data,
                ledger=ledger,
                num_records=records,
                state=self._restored.get("annotator"),
                teacher=self.teacher.bound,
            )
        if self.annotator.affordable(limit=1) < 1 and 0 < self.steps_done == self._calls_made():
            rank_zero_info(
                f"Nothing left to do: the checkpoint is of a run that had used its target up, at step "
                f"{self.steps_done}."
            )
            self.trainer.should_stop = True
            return
        self.annotator.require_affordable()

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Remembers where a step begins, to know one that was cut short."""
        self._steps_before_batch = self.steps_done

    def _calls_made(self) -> int:
        return sum(self.annotator.account.counts(scope="run").values())

    def on_train_start(self) -> None:
        """Fixes how many calls this run plans, before its first: the guarantee is about the plan."""
        made = self._calls_made()
        plan = None
        if (
            self.trainer.max_epochs is not None
            and self.trainer.max_epochs >= 0
            and math.isfinite(self.trainer.num_training_batches)
        ):
            total = self.trainer.max_epochs * int(self.trainer.num_training_batches)
            plan = made + self.annotator.affordable(limit=max(0, total - self.steps_done))
        elif self.annotator.target_epsilon is not None:
            plan = made + self.annotator.affordable(limit=10**9)
        before = self.planned_calls
        if made and (before is None or plan is None or plan > before):
            self.plan_changed = True
        elif made and before is not None:
            # Whoever resumes for fewer steps may have seen what the first ones gave: the first plan stays the one to
            # cover.
            plan = made + self.annotator.affordable(limit=max(0, before - made))
        self.planned_calls = plan

    def log_privacy(self, *, on_epoch: bool = False) -> None:
        """Both ε figures and the number of queries, to every logger and the progress bar."""
        account = self.annotator.account
        self.log_dict(
            {
                "privacy/epsilon": account.epsilon(),
                "privacy/epsilon_published": account.epsilon_published(),
                "privacy/queries": float(account.queries()),
            },
            prog_bar=True,
            on_step=not on_epoch,
            on_epoch=on_epoch,
        )

    def on_validation_epoch_end(self) -> None:
        """Logs the figures beside the accuracy they were paid for, whatever `log_every_n_steps` leaves out."""
        if self.annotator.is_open and not self.trainer.sanity_checking:
            self.log_privacy(on_epoch=True)

    def guarantee(self) -> Guarantee:
        """What may be said of this run's artefacts as things stand."""
        planned = None if self.plan_changed else self.planned_calls
        return Guarantee.of_run(self.annotator, artefacts=self.published_artefacts, planned_calls=planned)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """The student's accuracy on public images (N, C, H, W) and labels (N,)."""
        images, labels = batch
        self.val_accuracy(self(images), labels)
        self.log("val/accuracy", self.val_accuracy, prog_bar=True)

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """The student's accuracy on the public test split."""
        images, labels = batch
        self.test_accuracy(self(images), labels)
        self.log("test/accuracy", self.test_accuracy)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Counters, the seed of the draws, and this run's charges."""
        checkpoint["distillation"] = {
            "steps_done": self.steps_done,
            "draw_seed": self.draw_seed,
            "planned_calls": self.planned_calls,
            "plan_changed": self.plan_changed,
            "annotator": self.annotator.account.state() if self.annotator.is_open else self._restored.get("annotator"),
        }

        self._take_back_unfinished_step(checkpoint)

    def _take_back_unfinished_step(self, checkpoint: dict[str, Any]) -> None:
        """Lets a run that was interrupted within a step do that step again.

        Lightning would go on with the batch after it: one step fewer, no validation at the end of that epoch. What the
        interrupted step was charged stays charged.
        """
        loops = checkpoint.get("loops", {}).get("fit_loop", {})
        progress = loops.get("epoch_loop.batch_progress")
        if progress is None or self.steps_done != self._steps_before_batch:
            return
        if progress["current"]["ready"] <= progress["current"]["processed"]:
            return
        for counts in (progress["total"], progress["current"]):
            counts["ready"] = counts["started"] = counts["processed"] = counts["completed"]
        progress["is_last_batch"] = False
        for state in loops["state_dict"].get("combined_loader", []):
            if "next" in state:
                state["next"] = progress["current"]["completed"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`; the charges are merged with the ledger when the fit begins."""
        self._restored = checkpoint.get("distillation", {})
        self.steps_done = int(self._restored.get("steps_done", 0))
        self.draw_seed = self._restored.get("draw_seed")
        self.planned_calls = self._restored.get("planned_calls")
        self.plan_changed = bool(self._restored.get("plan_changed"))
