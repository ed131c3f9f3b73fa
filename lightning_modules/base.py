"""What all data-free methods share: student, images, private teacher kept apart, annotator, resuming."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, ClassVar

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from datamodules.partition import Partition, require_partition
from datamodules.shares import whole
from lightning_modules.callbacks.defaults import default_callbacks
from lightning_modules.callbacks.record import keep_teacher_accuracy, measured_on
from lightning_modules.image_source import ImageSettings
from lightning_modules.losses.functional import joined, soft_cross_entropy
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks import SmallCNN, build_network
from lightning_modules.networks.batchnorm import frozen_statistics
from lightning_modules.networks.moving_average import moving_average
from lightning_modules.networks.pretrained import assumptions_of, require_encoder
from lightning_modules.optimizers import Optimizers, adam
from lightning_modules.query_plan import QueryPlan
from lightning_modules.replay import Replay, ReplayMemory
from lightning_modules.runtime.area_under_curve import AreaUnderCurve, log_auroc
from lightning_modules.runtime.checkpoint_io import take_back_unfinished_step
from lightning_modules.runtime.hyperparameters import (
    GuardedLoading,
    keep_plain_hyperparameters,
    note_recorded,
    require_given,
    settings_of,
)
from lightning_modules.runtime.predictions import images_of
from lightning_modules.runtime.processes import (
    average_gradients,
    broadcast_tensors,
    check_strategy,
    processes_of,
    share_of,
)
from lightning_modules.runtime.randomness import Draws
from lightning_modules.runtime.runs import datamodule_of, is_dev_run
from lightning_modules.runtime.validation import log_validation_accuracy, validation_metric
from lightning_modules.setting_checks import check_number, check_whole_number
from lightning_modules.teachers.checks import ACCURACY_ACCESS, CHECKS, TRIAL_ACCESS, TeacherChecks
from lightning_modules.teachers.private_model import PrivateModel
from lightning_modules.teachers.source import TeacherSource
from lightning_modules.teachers.teacher_input import OURS, TeacherInput, TeacherOutputs, check_outputs
from lightning_modules.teachers.trial import trial_images
from privacy.annotators import Annotator
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError
from privacy.processes import Processes, ProcessesError, by_all, share_size

__all__ = ["DataFreeDistillation"]


class DataFreeDistillation(GuardedLoading, LightningModule):
    """Base of the data-free methods. A subclass writes its paper's algorithm as one `training_step`.

    The teacher is a path, read when a fit begins. It is no submodule: it reaches no `state_dict`, checkpoint or logger,
    and `test` or `load_from_checkpoint` work where it does not exist. Nothing about it is used except through the
    annotator.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        batch_size: B, images per step, of all processes together; linked from the data.
        annotator: Mechanism, noise and budget: all that leaves the teacher passes it.
        teacher: The teacher's checkpoint, or a network in a script.
        teacher_network: Builds the teacher where its file holds nothing but weights.
        private_data: Public name of the teacher's training data where its file does not say.
        teacher_input: What the teacher takes, where it is not images in [-1, 1] of the data's size and channels.
        teacher_outputs: What it gives: `logits`, `probabilities` (their logarithm is taken) or `log_probabilities`.
        teacher_checks: What is found out about the teacher besides what is charged.
        student: Builds the student, called with those of `num_classes` and `image_shape` that it accepts. Default:
            `SmallCNN`.
        images: Where images come from.
        optimizers: Optimizers and schedules of student and generator.
        generator_steps: Updates of the generator in each step of a method that calls `update_generator_again`.
        student_ema: Decay of a moving average of the student's weights, which is then evaluated and published in its
            place.
        replay: Steps of the student on earlier images and what was released about them.

    Raises:
        ValueError: A setting that has no meaning.

    Attributes:
        paper: Letter of the paper in this project's documents.
        published_artefacts: What a subclass computes from released values and may publish.
        data_accesses: Accesses to private things that nothing is charged for, in words for the guarantee.
    """

    paper: ClassVar[str] = ""

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        annotator: Annotator,
        teacher: str | nn.Module,
        images: ImageSettings,
        teacher_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        teacher_input: TeacherInput = OURS,
        teacher_outputs: TeacherOutputs = "logits",
        teacher_checks: TeacherChecks = CHECKS,
        student: Callable[..., nn.Module] | None = None,
        optimizers: Optimizers | None = None,
        generator_steps: int = 1,
        student_ema: float | None = None,
        replay: Replay = Replay(),
    ) -> None:
        super().__init__()
        # A network is neither a hyperparameter nor saved; Lightning would warn that it is.
        self.save_hyperparameters(ignore=["teacher"] if isinstance(teacher, nn.Module) else [])
        self._objects_given = keep_plain_hyperparameters(self)
        self.automatic_optimization = False
        self.num_classes = num_classes
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.batch_size = batch_size
        self.annotator = annotator
        self.annotator.bind(batch_size=batch_size, num_classes=num_classes, paper=self.paper or None)
        self._teacher_source = TeacherSource(
            teacher,
            network=teacher_network,
            private_data=private_data,
            num_classes=num_classes,
            image_shape=self.image_shape,
            inputs=settings_of(TeacherInput, teacher_input, name="teacher_input"),
            outputs=check_outputs(teacher_outputs, name="teacher_outputs"),
        )
        self.teacher_checks = settings_of(TeacherChecks, teacher_checks, name="teacher_checks")
        self._teacher: PrivateModel | None = None
        self.student = build_network(
            student or SmallCNN, num_classes=num_classes, image_shape=self.image_shape, name="model.student"
        )
        note_recorded(self, "student", self.student)
        self.student.to(memory_format=torch.channels_last)  # a CPU pools several times as fast
        check_number("student_ema", student_ema, least=0, below=1, null="no average")
        self.student_average = None if student_ema is None else moving_average(self.student, decay=student_ema)
        # After the student: the order decides which initial weights a seed gives.
        self.images = images.build(image_shape=self.image_shape, batch_size=batch_size)
        self.generator = self.images.generator  # a submodule of this one, trained and saved with it
        if self.generator is not None:
            self.generator.to(memory_format=torch.channels_last)
        check_whole_number("generator_steps", generator_steps, least=1)
        if generator_steps > 1 and self.generator is None:
            raise ValueError(
                f"generator_steps must be 1 for images.source={self.images.kind!r}, which has no generator, got "
                f"{generator_steps}"
            )
        self.generator_steps = generator_steps
        self.memory = settings_of(Replay, replay, name="replay").build(batch_size=batch_size)
        self.published_artefacts: tuple[str, ...] = ("student", *self.images.published)
        self.optimizer_settings = settings_of(Optimizers, optimizers or Optimizers(), name="optimizers")
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.val_auroc, self.test_auroc = AreaUnderCurve(num_classes), AreaUnderCurve(num_classes)
        self.plan = QueryPlan()
        self.data_accesses: list[str] = []
        self.partitions: list[Partition] = []
        self.steps_done = 0
        self.draw_seed: int | None = None
        self._steps_before_batch = -1
        self._generator_is_warm = False
        self._restored: dict[str, Any] = {}

    # --- what a subclass writes ---

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """What the student is fitted to, through the annotator.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            images: What they are of, shape (B, C, H, W).
        """
        raise NotImplementedError(f"{type(self).__name__} has no annotation")

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The generator's loss.

        Args:
            images: Generated images with their graph, shape (n, C, H, W).
            targets: Released targets of these images, shape (n, c), held fixed.
        """
        raise NotImplementedError(f"{type(self).__name__} trains no generator")

    @property
    def of_ensemble(self) -> bool:
        """Whether the annotator is for the responses of many teachers, of a file of `TeacherEnsemble`."""
        return False

    @property
    def needs_gradients_of_teacher(self) -> str | None:
        """What needs gradients through the teacher, or its BatchNorm statistics, in words; None where nothing does."""
        return None

    @property
    def next_calls(self) -> int:
        """Calls of the annotator that the next step makes."""
        return 1

    def calls_of(self, steps: int) -> int:
        """Calls of the annotator that a run of `steps` steps makes if no budget ends it."""
        return steps

    def affordable_calls(self, steps: int) -> int:
        """How many of the calls that a run of `steps` steps in all has yet to make stay within the target."""
        return self.annotator.affordable(limit=max(0, steps - self.steps_done))

    def assumptions(self) -> list[str]:
        """What a guarantee of this run rests on besides the annotator."""
        return []

    # --- the two updates ---

    def update_student(self, images: torch.Tensor) -> torch.Tensor:
        """One step on what the annotator releases about `images`. Returns the released targets, shape (B, c)."""
        with self.toggled_optimizer(self.optimizer("student")):
            outputs = self.student(images)
            annotation = self.annotate(outputs.detach(), images)
            self.step_student(annotation.loss(outputs.float()).mean())
        if self.memory is not None:
            self.replay_released(self.memory)
            self.memory.add(self.of_all(images), self.of_all(self.memory.targets_of(annotation)))
        return annotation.targets

    def step_student(self, loss: torch.Tensor, *, replayed: bool = False) -> None:
        """Backward and one step of the student's optimizer; inside `toggled_optimizer`.

        Args:
            loss: A scalar with its graph.
            replayed: Whether it is of earlier images: the schedule does not count such a step.
        """
        self.descend("student", loss)
        if self.student_average is not None:
            self.student_average.update_parameters(self.student)
        if not replayed:
            self.step_scheduler("student")
        self.log_in_step("train/replay_loss" if replayed else "train/student_loss", loss.detach())

    def replay_released(self, memory: ReplayMemory) -> None:
        """Steps of the student on earlier images: post-processing of what was released, and paid for, then."""
        if not len(memory):
            return
        for turn in range(memory.settings.steps):
            own = share_of(memory.batch_size, self.processes)
            images, targets = (
                drawn[own].to(self.device)
                for drawn in memory.draw(self.common_draws.again(turn).stream(self.steps_done, "replay"))
            )
            with self.toggled_optimizer(self.optimizer("student")):
                loss = soft_cross_entropy(self.student(images).float(), targets).mean()
                self.step_student(loss, replayed=True)

    def update_generator(self, latents: torch.Tensor, targets: torch.Tensor, *, scheduled: bool = True) -> None:
        """One step of the generator, the student held fixed.

        Args:
            latents: What this step's images are made from, see `draw_latents`.
            targets: Released targets of their images, shape (n, c), detached: a gradient through them would carry the
                teacher past the noise. No rows where there are none.
            scheduled: Whether this is one of the steps that the generator's schedule counts.
        """
        assert self.generator is not None
        with self.toggled_optimizer(self.optimizer("generator")), frozen_statistics(self.student):
            loss = self.generator_loss(self.generator(latents), targets)
            self.descend("generator", loss)
        if scheduled:
            self.step_scheduler("generator")
        self.log_in_step("train/generator_loss", loss.detach())

    def update_generator_again(self) -> None:
        """The updates of `generator_steps` after the first: of images that nobody is asked about.

        So they have no targets, and the student's loss on targets is none of their terms. They see what
        `generator_loss` is of: the student alone, or a private teacher, which is charged as what nothing bounds. The
        generator's schedule does not count them.
        """
        for turn in range(1, self.generator_steps):
            latents = self.draw_latents(self.steps_done, turn=turn)
            assert latents is not None
            self.update_generator(latents, torch.empty(0, self.num_classes, device=self.device), scheduled=False)

    def descend(self, name: str, loss: torch.Tensor) -> None:
        """One step of an optimizer down a loss, its mean over processes; inside `toggled_optimizer`."""
        optimizer = self.optimizer(name)
        optimizer.zero_grad()
        if self.processes.size == 1:
            self.manual_backward(loss)
        else:
            # Student and generator take turns, for which DDP would have to look for unused parameters at each step.
            with self.trainer.strategy.block_backward_sync():  # type: ignore[attr-defined]
                self.manual_backward(loss)
            average_gradients((p for group in optimizer.param_groups for p in group["params"]), self.processes)
        optimizer.step()

    # --- processes ---

    @property
    def processes(self) -> Processes:
        """Those of this run: each makes an equal share of every batch, and the first asks the annotator for all."""
        return processes_of(self._trainer)

    def of_all(self, own: torch.Tensor) -> torch.Tensor:
        """Rows of all processes, in their order, on the CPU; `own` are this one's."""
        return joined(self.processes.gather(own.detach().cpu()))

    # --- images ---

    @property
    def draws(self) -> Draws:
        """The draws of this process; a run's seed is fixed when its first fit begins."""
        assert self.draw_seed is not None
        return Draws(self.draw_seed, self.global_rank, self.device)

    @property
    def common_draws(self) -> Draws:
        """Draws that are the same in each process."""
        return replace(self.draws, rank=0)

    def draw_latents(self, step: int, *, turn: int = 0) -> torch.Tensor | None:
        """What the generator makes the images of a step from, see `ImageSource.latents`; others in each turn."""
        return self.images.latents(step, self.draws.again(turn))

    @torch.no_grad()
    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        """A batch of images, shape (B, C, H, W), generated ones first."""
        return self.images.images(step, latents, self.draws)

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """Images for a person to look at, shape (count, C, H, W): the same ones each time."""
        return self.images.grid(count, seed=self.draw_seed or 0, device=self.device)

    # --- optimizers ---

    def optimized(self) -> dict[str, tuple[Iterable[nn.Parameter], Any, Any]]:
        """By name: parameters, and what makes their optimizer and its schedule (None: Adam, and none)."""
        settings = self.optimizer_settings
        found: dict[str, tuple[Iterable[nn.Parameter], Any, Any]] = {
            "student": (self.student.parameters(), settings.student, settings.student_lr_scheduler)
        }
        if self.generator is not None:
            found["generator"] = (self.generator_parameters(), settings.generator, settings.generator_lr_scheduler)
        return found

    def generator_parameters(self) -> Iterator[nn.Parameter]:
        """What the generator's optimizer steps."""
        assert self.generator is not None
        return self.generator.parameters()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """An optimizer for each of `optimized`, and the schedules that were asked for."""
        optimizers, schedulers = [], []
        for parameters, optimizer, scheduler in self.optimized().values():
            optimizers.append((optimizer or adam)(parameters))
            if scheduler is not None:
                schedulers.append(scheduler(optimizers[-1]))
        return optimizers, schedulers

    def optimizer(self, name: str) -> Any:
        """Lightning's optimizer of `student`, `generator` or what else a method trains."""
        made = self.optimizers()
        return (made if isinstance(made, list) else [made])[list(self.optimized()).index(name)]

    def step_scheduler(self, name: str) -> None:
        """One step of a network's schedule, where it has one."""
        scheduled = [known for known, (_, _, scheduler) in self.optimized().items() if scheduler is not None]
        if name not in scheduled:
            return
        made = self.lr_schedulers()
        scheduler = (made if isinstance(made, list) else [made])[scheduled.index(name)]
        assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
        scheduler.step()

    # --- the course of a fit ---

    @property
    def teacher(self) -> PrivateModel:
        """The private teacher, or the ensemble, while a fit runs.

        Raises:
            RuntimeError: Outside of a fit.
        """
        if self._teacher is None:
            raise RuntimeError("the teacher is loaded when a fit begins; nothing else needs it")
        return self._teacher

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The published student's logits, (N, C, H, W) → (N, c)."""
        logits: torch.Tensor = self.published_student(images)
        return logits

    def configure_callbacks(self) -> list[Callback]:
        """Budget stop, guarantee and figures, unless the trainer was given its own."""
        return default_callbacks(self.trainer)

    def setup(self, stage: str) -> None:
        """Loads the teacher, or the ensemble, for a fit, before any other work.

        Raises:
            ProcessesError: A strategy that is not supported, or a batch that its processes cannot share.
            TeacherError: The file is missing, or holds nothing of use.
        """
        if stage != "fit":
            return
        if isinstance(self._trainer, Trainer):
            check_strategy(self._trainer, averages_itself=True)
        by_all(self.processes, self._prepare_fit)

    def _prepare_fit(self) -> None:
        """What may fail in one process alone, and then has to fail in all of them."""
        self.images.rows = share_size(self.batch_size, self.processes.size)
        if self.memory is not None and self.memory.batch_size % self.processes.size:
            raise ProcessesError(
                f"replay.batch_size must be a multiple of the {self.processes.size} processes, each of which takes an "
                f"equal share of it, got {self.memory.batch_size}"
            )
        if self.images.kind == "both" and (self.batch_size // 2) % self.processes.size:
            raise ProcessesError(
                "half of data.batch_size is generated for images.source='both', and each process makes an equal share "
                f"of it: it must be a multiple of 2 x {self.processes.size} processes, got {self.batch_size}"
            )
        if self._teacher is None:
            teacher = self._read_teacher()
            self.try_teacher(teacher, named="model.teacher_input")
            self.keep_partitions(teacher)
            self._teacher = teacher

    def keep_partitions(self, teacher: PrivateModel) -> None:
        """Remembers which records are private, in checkpoints as well: what the student is tested on is held to it."""
        self.partitions += [one for one in teacher.partitions if one not in self.partitions]

    def _read_teacher(self) -> PrivateModel:
        source = self._teacher_source
        teacher = source.load_ensemble() if self.of_ensemble else source.load_teacher()
        if self.needs_gradients_of_teacher is not None:
            teacher.require_gradients(reason=self.needs_gradients_of_teacher)
        return teacher

    def require_teacher(self) -> None:
        """Reads the teacher and forgets it: whether a fit could begin. It sees blank images alone.

        Raises:
            TeacherError: The file is missing, or holds nothing of use.
        """
        self._read_teacher()

    def try_teacher(self, teacher: PrivateModel, *, named: str) -> None:
        """Looks at what a teacher that was not trained here gives for procedural images, see `TeacherChecks`.

        Args:
            teacher: It.
            named: The setting that says what it takes, for messages.

        Raises:
            TeacherError: Its outputs are not what was stated.
        """
        if not self.teacher_checks.trial or not teacher.is_foreign:
            return
        if TRIAL_ACCESS not in self.data_accesses:
            self.data_accesses.append(TRIAL_ACCESS)
        images = trial_images(self.image_shape, getattr(self.images, "prior", None))
        for warning in teacher.tried_on(images, named=named):
            rank_zero_warn(warning)

    def on_fit_start(self) -> None:
        """Opens the ledger, takes over what a checkpoint remembers, and refuses a budget in which no step fits."""
        self.on_test_start()
        require_encoder(self.student)
        if self.draw_seed is None:
            self.draw_seed = self.processes.broadcast(torch.initial_seed())
        self._open_annotator()
        by_all(self.processes, self._require_a_step)
        if self.teacher_checks.accuracy:
            self._show_teacher_accuracy()

    def _show_teacher_accuracy(self) -> None:
        """On the public test split, by the first process; nothing of it is logged."""
        if ACCURACY_ACCESS not in self.data_accesses:
            self.data_accesses.append(ACCURACY_ACCESS)
        data = datamodule_of(self.trainer)
        if data is None:
            raise ValueError(
                "teacher_checks.accuracy is measured on the test split of a data module: fit with datamodule=..., or "
                "leave it out"
            )
        if not self.trainer.is_global_zero:
            return
        data.setup("test")
        found = measured_on(self.teacher.logits, whole(data.test_dataloader()), self.device)
        rank_zero_info(
            f"The teacher's own accuracy on the test split of {data.name}: {100 * found['accuracy']:.2f} %. NOT "
            "CHARGED: this is a query to the private teacher that no noise covers. Do not publish it, and choose "
            "nothing by it."
        )
        if not is_dev_run(self.trainer):
            keep_teacher_accuracy(self.trainer, found)

    def _require_a_step(self) -> None:
        calls = self.next_calls
        if not calls:
            return
        account, target = self.annotator.account, self.annotator.target_epsilon
        kept = target is None or account.epsilon_after(self.annotator.charge, 0) <= target
        used_up = self.annotator.affordable(limit=calls) < calls
        if used_up and kept and 0 < self.steps_done == self.annotator.calls_made():
            rank_zero_info(
                f"Nothing left to do: the checkpoint is of a run that had used its target up, at step "
                f"{self.steps_done}."
            )
            self.trainer.should_stop = True
            return
        self.annotator.require_affordable(calls)

    def _open_annotator(self) -> None:
        state = self._restored.get("annotator")
        if self.annotator.is_open:
            # The same object in a second module, or a second fit.
            self.annotator.require_open_for(self.teacher.training, state=state)
            return
        self.annotator.open(
            private_data=self.teacher.private_data,
            ledger=self.teacher.ledger,
            num_records=self.teacher.num_records or getattr(datamodule_of(self.trainer), "num_records", None),
            state=state,
            training=self.teacher.training,
            processes=self.processes,
        )

    def on_train_start(self) -> None:
        """Fixes the plan, and fits the generator to the prior where the run has not done so."""
        self.fix_plan()
        self.warm_start()

    @property
    def resumed_run(self) -> str | None:
        """Identity of the run that a checkpoint was taken from, where one is resumed."""
        return (self._restored.get("annotator") or {}).get("run")

    def fix_plan(self) -> None:
        """Fixes what this run plans, before its first call: the guarantee is about the plan."""
        self.plan.fix(self.annotator, self.calls_wanted)

    def calls_wanted(self) -> int | None:
        """Calls that this fit would make in all, with those before it; None where no end is known."""
        made, batches = self.annotator.calls_made(), self.trainer.num_training_batches
        epochs = self.trainer.max_epochs
        if epochs is not None and epochs >= 0 and math.isfinite(batches):
            return made + self.affordable_calls(epochs * int(batches))
        if self.annotator.target_epsilon is not None:
            return made + self.annotator.affordable(limit=10**9)
        return None

    def warm_start(self) -> None:
        """Prepares the generator, before the first query and once in a run."""
        if self.images.warm_start_steps and not self._generator_is_warm and not self.steps_done:
            rank_zero_info(self.images.warm_start(self.draws))
            self._generator_is_warm = True
            if self.generator is not None:
                broadcast_tensors(self.generator.state_dict().values(), self.processes)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Remembers where a step begins, to know one that was cut short, and resets the generator where it is due."""
        self._steps_before_batch = self.steps_done
        every = self.images.reset_every
        if every and self.steps_done and self.steps_done % every == 0:
            self.reset_generator()

    def reset_generator(self) -> None:
        """Gives the generator new random weights, and clears the state of its optimizer."""
        self.images.reset(self.steps_done, self.draws)
        self.optimizer("generator").optimizer.state.clear()

    def end_step(self) -> None:
        """Logs what was spent where it is due, and counts the step."""
        if self.is_logged:
            self.log_privacy()
        self.steps_done += 1

    # --- what is said of a run ---

    @property
    def is_logged(self) -> bool:
        """Whether figures of this step reach anybody: every `log_every_n_steps`, and the last step of an epoch.

        Composing ε and taking figures in costs as much as a small student's step, and on a GPU waits for the device.
        """
        trainer = self.trainer
        due: bool = trainer._logger_connector.should_update_logs  # as Lightning's own callbacks ask
        return due or trainer.is_last_batch

    def log_in_step(self, name: str, value: torch.Tensor | float) -> None:
        """Logs one figure of this step, if it is one that is logged."""
        if self.is_logged:
            self.log(name, value)

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

    def guarantee(self) -> Guarantee:
        """What may be said of this run's artefacts as things stand."""
        return self.annotator.guarantee(
            artefacts=self.published_artefacts,
            planned=self.plan.covered,
            data_accesses=self.data_accesses,
            assumptions=list(
                dict.fromkeys(  # a student may be of its teacher's kind
                    [
                        *self.assumptions(),
                        *self.images.assumptions,
                        *(() if self._teacher is None else self._teacher.assumptions),
                        *assumptions_of(self.student),
                    ]
                )
            ),
        )

    def covered_epsilon(self) -> float:
        """Record-level ε that a guarantee of this run states as things stand."""
        return self.annotator.covered_epsilon(self.plan.covered)

    @property
    def published_student(self) -> nn.Module:
        """The student that is evaluated and published: itself, or the moving average of its weights."""
        if self.student_average is None:
            return self.student
        average: nn.Module = self.student_average.module
        return average

    def published_networks(self) -> dict[str, nn.Module]:
        """Networks that a guarantee of this run covers, by name."""
        return {"student": self.published_student, **self.images.networks()}

    # --- evaluation ---

    def on_validation_start(self) -> None:
        """BatchNorm's statistics are those of process 0 in all, as in what is saved; see `on_test_start`."""
        self.on_test_start()
        broadcast_tensors(self.buffers(), self.processes)

    def on_test_start(self) -> None:
        """Raises `PartitionError` for data whose public records may be private ones of the teacher."""
        require_partition(self.partitions, datamodule_of(self.trainer))

    on_predict_start = on_test_start

    def on_train_end(self) -> None:
        """As `on_validation_start`."""
        broadcast_tensors(self.buffers(), self.processes)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """The student's accuracy on public images (N, C, H, W) and labels (N,)."""
        images, labels = batch
        self.validate_logits(self(images), labels)

    def validate_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Logs what is measured of the student's logits (N, c) on images with these labels (N,)."""
        self.val_accuracy(logits, labels)
        log_validation_accuracy(self, self.val_accuracy)
        log_auroc(self, self.val_auroc, logits, labels, beside=validation_metric(self.trainer))

    def on_validation_epoch_end(self) -> None:
        """Logs the figures beside the accuracy they were paid for, whatever `log_every_n_steps` leaves out."""
        if self.annotator.is_open and not self.trainer.sanity_checking:
            self.log_privacy(on_epoch=True)

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """The student's accuracy on the public test split."""
        images, labels = batch
        logits = self(images)
        self.test_accuracy(logits, labels)
        self.log("test/accuracy", self.test_accuracy)
        log_auroc(self, self.test_auroc, logits, labels, beside="test/accuracy")

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The student's probabilities, (N, C, H, W) → (N, c); of images alone, or of a batch with labels."""
        probabilities: torch.Tensor = self(images_of(batch)).float().softmax(dim=1)
        return probabilities

    # --- checkpoints ---

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path | IO[bytes], *args: Any, **kwargs: Any) -> Any:
        """See Lightning's.

        Raises:
            CheckpointError: Of a script that gave an object (an annotator, a prior), which is not given again.
        """
        require_given(_objects_of(checkpoint_path), kwargs, checkpoint=str(checkpoint_path))
        return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Counters, the seed of the draws, and this run's charges."""
        checkpoint["distillation"] = {
            "steps_done": self.steps_done,
            "draw_seed": self.draw_seed,
            "generator_is_warm": self._generator_is_warm,
            "data_accesses": list(self.data_accesses),
            "partitions": list(self.partitions),
            "objects": list(self._objects_given),
            "annotator": self.annotator.account.state() if self.annotator.is_open else self._restored.get("annotator"),
            **self.plan.state(),
        }
        if self.memory is not None:
            checkpoint["replay"] = self.memory.state()
        if self.steps_done == self._steps_before_batch:
            take_back_unfinished_step(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`; the charges are merged with the ledger when the fit begins.

        Raises:
            CheckpointError: A fit is to go on from a file that says nothing of what its run was charged.
        """
        if "distillation" not in checkpoint and self._trainer is not None and self._trainer.state.fn == "fit":
            raise CheckpointError(
                "the checkpoint says nothing of what its run was charged, and what its weights cost could not be "
                "stated: give one that a fit of this method has written"
            )
        self._restored = checkpoint.get("distillation", {})
        self.steps_done = int(self._restored.get("steps_done", 0))
        self.draw_seed = self._restored.get("draw_seed")
        self._generator_is_warm = bool(self._restored.get("generator_is_warm"))
        self.plan.load(self._restored)
        if self.memory is not None and "replay" in checkpoint:
            self.memory.load(checkpoint["replay"])
        stated = self._restored.get("partitions", [])
        self.partitions += [one for one in stated if one not in self.partitions]
        # What was accessed once cannot be taken back by resuming without it.
        self.data_accesses = list(dict.fromkeys([*self.data_accesses, *self._restored.get("data_accesses", [])]))


def _objects_of(checkpoint: str | Path | IO[bytes]) -> list[str]:
    """Settings that a script gave as objects when a checkpoint was saved; none where it cannot be read."""
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception:
        return []  # Lightning says why
    finally:
        if not isinstance(checkpoint, (str, Path)):
            checkpoint.seek(0)
    state = content.get("distillation") if isinstance(content, dict) else None
    return [str(name) for name in state["objects"]] if state else []
