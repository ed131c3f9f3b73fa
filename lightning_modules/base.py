"""Shared parts of all data-free methods: the two updates, and the hooks that a method implements."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

from lightning import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.callbacks import ForwardExceptions, PredictionWriter, PrivacyCallback, SyntheticImages
from lightning_modules.images import NEVER_RESET, Images
from lightning_modules.losses.functional import balanced_mean
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks.network import build_network, frozen_statistics
from lightning_modules.private_fit import LearnsFromTeacher
from lightning_modules.student import ReplayMemory, StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.training.evaluation import Evaluated, Evaluation
from lightning_modules.training.hyperparameters import keep_plain_hyperparameters
from lightning_modules.training.manual_optimization import OptimizedGroup
from lightning_modules.training.run import datamodule_of, missing_callbacks, share_of
from privacy.account import Budget
from privacy.checks import check_left_out, settings_of
from privacy.mechanisms.base import Mechanism, Shape
from privacy.session import PrivacySession


class DataFreeDistillation(Evaluated, LearnsFromTeacher):
    """Base of the data-free methods. A subclass writes its paper's algorithm as one `training_step`.

    Nothing about the teacher is used except through the privacy session, which `on_fit_start` opens and whose plan
    `on_train_start` fixes; `PrivacyCallback` logs both ε and ends the fit in time.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: B, images per step, of all processes together; linked from the data.
        mechanism: What is released about the teacher, and with how much noise.
        budget: What may be spent; see `Budget`.
        teacher: See `TeacherConfig`.
        student: See `StudentConfig`.
        images: Where the images come from.

    Attributes:
        paper: Name of the method whose paper's theorem gives the published ε.
        mechanisms: The classes of mechanisms that the method supports.
        unused: Settings that the method refuses because it does not use them, such as `student.replay`. A name without
            a dot is an argument that its constructor does not take.
        precisions: Allowed values of `trainer.precision`: weights are float32, with autocast in bfloat16 at most.
        takes_private_pool: Whether `images.pool` may be the private data itself: no image is kept, and ε is infinite.
    """

    paper: ClassVar[str] = ""
    mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (Mechanism,)
    unused: ClassVar[tuple[str, ...]] = ()
    precisions: ClassVar[tuple[str, ...]] = ("32-true", "32", "bf16-mixed")
    takes_private_pool: ClassVar[bool] = False

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        mechanism: Mechanism,
        budget: Budget = Budget(),
        teacher: TeacherConfig,
        student: StudentConfig = StudentConfig(),
        images: Images = Images(),
    ) -> None:
        super().__init__()
        # Mechanisms of direct training bound labels only, and cannot query a teacher.
        if not isinstance(mechanism, self.mechanisms) or mechanism.source_of_labels:
            names = " or ".join(kind.__name__ for kind in self.mechanisms)
            raise ValueError(f"mechanism must be a {names}, got {type(mechanism).__name__}")
        config = settings_of(TeacherConfig, teacher, name="teacher")
        # A network given in a script is never saved; as a hyperparameter, Lightning would warn about it.
        self.save_hyperparameters(ignore=["teacher"] if isinstance(config.path, nn.Module) else [])
        self._objects_given = keep_plain_hyperparameters(self)
        self.automatic_optimization = False
        self.num_classes = num_classes
        self.image_shape = (image_shape[0], image_shape[1], image_shape[2])
        self.batch_size = batch_size
        self.mechanism = mechanism
        self.session = PrivacySession(
            mechanism, Shape(batch_size, num_classes, self.paper), budget=settings_of(Budget, budget, name="budget")
        )
        self.teacher_config = config.held()
        self.student_settings = settings_of(StudentConfig, student, name="student")
        self.image_settings = settings_of(Images, images, name="images")
        check_left_out(self.unused, {"student": self.student_settings, "images": self.image_settings}, by=self)
        of_data: dict[str, Any] = {"num_classes": num_classes, "image_shape": self.image_shape}
        self.student = build_network(self.student_settings.network, **of_data, name="model.student.network")
        # After the student, since the order determines a seed's initial weights.
        self.images = self.image_settings.build(image_shape=self.image_shape, batch_size=batch_size)
        self.generator = self.images.generator  # a submodule of this one, trained and saved with it
        replay = self.student_settings.replay
        self.memory = ReplayMemory(replay, batch_size=batch_size) if replay.capacity else None
        self.covered_artefacts: tuple[str, ...] = ("student", *self.images.covered)
        self.evaluation = Evaluation(num_classes)
        self.student_steps = 0

    # --- hooks that a method implements ---

    def annotate(self, outputs: Tensor, images: Tensor) -> Annotation:
        """Gets targets through the session, for the student's detached logits (B, c) on images (B, C, H, W)."""
        raise NotImplementedError(f"{type(self).__name__} has no annotation")

    def generator_loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Returns the generator's loss on its images (n, C, H, W), with their graph, and fixed targets (n, c)."""
        raise NotImplementedError(f"{type(self).__name__} trains no generator")

    # --- the two updates ---

    def update_student(self, images: Tensor) -> Tensor:
        """Takes a step on targets for `images` and returns these targets, shape (B, c)."""
        images = images.detach()
        # With replay, BatchNorm's statistics come from replayed images: those of the newest ones cost two points.
        with frozen_statistics(self.student) if self.memory else nullcontext():
            outputs = self.student(images)
        annotation = self.annotate(outputs.detach(), images)
        losses = annotation.loss(outputs.float())
        self.step_student(balanced_mean(losses, annotation.targets, power=self.student_settings.balance))
        if self.memory is not None:
            self.replay_released()
            self.memory.add(self.gather_rows(images), self.gather_rows(self.memory.rows_of(annotation)))
        return annotation.targets

    def step_student(self, loss: Tensor, *, replayed: bool = False) -> None:
        """Takes a student step on a scalar loss; the schedule does not count steps on `replayed` images."""
        self.descend("student", loss, scheduled=not replayed)
        self.log_in_step("train/replay_loss" if replayed else "train/student_loss", loss.detach())
        self.student_steps += not replayed

    def replay_released(self) -> None:
        """Trains the student on earlier images, which is post-processing of earlier releases."""
        assert self.memory is not None
        for turn in range(self.memory.settings.steps if len(self.memory) else 0):
            parts = self.memory.draw(self.draws.common.again(turn).stream(self.steps_done, "replay"))
            images, rows = (part[share_of(len(part), self.processes)].to(self.device) for part in parts)
            outputs = self.student(images).float()
            targets = self.memory.targets(rows, outputs.detach())
            losses = functional.cross_entropy(outputs, targets, reduction="none")
            self.step_student(balanced_mean(losses, targets, power=self.student_settings.balance), replayed=True)

    def update_generator(self, images: Tensor, targets: Tensor | None = None, *, scheduled: bool = True) -> None:
        """Updates the generator once, with the student held fixed.

        Args:
            images: This step's generated images with their graph, shape (n, C, H, W).
            targets: Their released targets, shape (n, c), detached: a gradient through them would bypass the noise.
            scheduled: Whether the generator's schedule counts this update.
        """
        targets = images.new_empty(0, self.num_classes) if targets is None else targets
        with self.toggled_optimizer(self.optimizer("generator")), frozen_statistics(self.student):
            loss = self.generator_loss(images, targets)
            self.descend("generator", loss, scheduled=scheduled)
        self.log_in_step("train/generator_loss", loss.detach())

    def draw_latents(self, step: int) -> Tensor | None:
        """Returns the generator's latent inputs for a step; see `ImageSource.latents`."""
        return self.images.latents(step, self.draws)

    def draw_images(self, step: int, latents: Tensor | None) -> Tensor:
        """A batch of images, shape (B, C, H, W), generated ones first, with their graph."""
        return self.images.images(step, latents, self.draws)

    def synthetic_grid(self, count: int = 64) -> Tensor:
        """Returns images for display, shape (count, C, H, W), from the same draws each time."""
        return self.images.grid(count, seed=self.draw_seed or 0, device=self.device)

    def optimized_groups(self) -> dict[str, OptimizedGroup]:
        """Returns the trained networks by name: the student, and the generator if there is one."""
        student, images = self.student_settings, self.image_settings
        groups = {"student": OptimizedGroup(self.student.parameters(), student.optimizer, student.lr_scheduler)}
        if self.generator is not None:
            groups["generator"] = OptimizedGroup(self.generator.parameters(), images.optimizer, images.lr_scheduler)
        return groups

    def reset_generator(self) -> None:
        """Gives the generator new random weights, and clears the state of its optimizer."""
        self.images.reset(self.steps_done, self.draws)
        self.optimizer("generator").optimizer.state.clear()

    # --- fit hooks ---

    def configure_callbacks(self) -> list[Callback]:
        """Returns the callbacks that every fit of such a method has, unless the trainer has its own."""
        kinds = (SyntheticImages, PrivacyCallback, ForwardExceptions, PredictionWriter)
        return missing_callbacks(self.trainer, *kinds)

    def prepare_fit(self) -> None:
        """See `LearnsFromTeacher.prepare_fit`; also divides the images among the processes, and opens a pool."""
        self.images.share(self.batch_size, self.processes.size)
        super().prepare_fit()
        data = datamodule_of(self._trainer)
        private = {self.teacher.private_data, getattr(data, "private_data", "")}
        own = getattr(data, "partition", None)
        self.images.open(private=private, partitions=[*self.session.partitions, own], data=data)
        if self.images.is_private and not self.takes_private_pool:  # replay and stages keep images
            raise ValueError("images.pool must be public, and its train part is the private data: give another")
        resets = self.images.reset_every or "images.reset_every" in self.unused
        if self.images.kind == "generator" and not resets and not self.steps_done:
            rank_zero_warn(NEVER_RESET)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """See `LearnsFromTeacher.on_train_batch_start`; also resets the generator when due."""
        super().on_train_batch_start(batch, batch_idx)
        if (every := self.images.reset_every) and self.steps_done and self.steps_done % every == 0:
            self.reset_generator()

    def logged_names(self) -> set[str]:
        return super().logged_names() | ({"train/replay_loss"} if self.memory is not None else set())

    def forward(self, images: Tensor) -> Tensor:
        """The student's logits, (N, C, H, W) → (N, c)."""
        logits: Tensor = self.student(images)
        return logits

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.memory is not None:
            checkpoint["replay"] = self.memory.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if self.memory is not None and "replay" in checkpoint:
            self.memory.load(checkpoint["replay"])
