"""What all data-free methods share: student, synthetic images, private teacher kept apart, annotator, resuming."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.callbacks import default_callbacks
from lightning_modules.functional.losses import following, soft_cross_entropy
from lightning_modules.networks import DAFLGenerator, Refiner, SmallCNN, build_network
from lightning_modules.networks.batchnorm import frozen_statistics
from lightning_modules.networks.refiner import check_refiner
from lightning_modules.networks.stacked import NetworkStack
from lightning_modules.priors import ImagePrior, StrokePrior
from lightning_modules.priors.warm_start import fit_generator
from lightning_modules.runtime.hyperparameters import keep_plain_hyperparameters
from lightning_modules.runtime.randomness import stream
from lightning_modules.runtime.runs import datamodule_of
from lightning_modules.teachers.private_ensemble import PrivateEnsemble
from lightning_modules.teachers.private_model import PrivateModel, TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.annotators import Annotator
from privacy.deprecation import renamed_attribute
from privacy.guarantee import Guarantee

__all__ = ["DataFreeDistillation", "Images"]

Images = Literal["generator", "prior", "both", "refined"]


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
        annotator: The only way in which the teacher's knowledge leaves.
        teacher: The teacher's checkpoint, or a network in a script.
        teacher_network: Builds the teacher where its file holds nothing but weights.
        private_data: Public name of the teacher's training data where its file does not say.
        student: Builds the student, called with those of `num_classes` and `image_shape` that it accepts. Default:
            `SmallCNN`.
        generator: Builds the generator, called with `image_shape`. Default: `DAFLGenerator`; for `images: refined`
            `Refiner`.
        images: Where synthetic images come from: `generator`, `prior`, `both` (half of each batch), or `refined`
            (images of the prior, changed by a small network that is trained in the generator's place); None for a
            method that makes its own.
        prior: Images drawn by rule, for `prior`, `both`, `refined` and a warm start. Default: `StrokePrior`.
        generator_warm_start: Steps for which the generator is fitted to images of the prior before the first annotated
            step, once in a run. Neither teacher nor data are asked; it costs time alone.
        student_optimizer: Default: Adam, rate 1e-3.
        student_lr_scheduler: Stepped once for each of the student's steps. Default: none.
        generator_optimizer: Default: Adam, rate 1e-3.

    Raises:
        ValueError: A setting that has no meaning.

    Attributes:
        paper: Letter of the paper in this project's documents.
        published_artefacts: What a subclass computes from the annotator's answers and may publish.
    """

    paper: ClassVar[str] = ""
    published_artefacts: tuple[str, ...] = ("student",)
    looks = renamed_attribute("data_accesses")

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
        generator: Callable[..., nn.Module] | None = None,
        images: Images | None = None,
        prior: ImagePrior | None = None,
        generator_warm_start: int = 0,
        student_optimizer: OptimizerCallable | None = None,
        student_lr_scheduler: LRSchedulerCallable | None = None,
        generator_optimizer: OptimizerCallable | None = None,
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
        self.annotator.bind(batch_size=batch_size, num_classes=num_classes, paper=self.paper or None)
        # Wrapped at once: as an attribute it would become part of the state_dict, and of every pickle of this module.
        source = _wrapped(teacher, num_classes, private_data) if isinstance(teacher, nn.Module) else teacher
        self._teacher_source = (source, teacher_network, private_data)
        self._teacher: PrivateModel | None = None
        self.student = build_network(
            student or SmallCNN, num_classes=num_classes, image_shape=self.image_shape, name="model.student"
        )
        if images not in ("generator", "prior", "both", "refined", None):
            raise ValueError(f"images must be generator, prior or both, or refined, got {images!r}")
        if images == "both" and batch_size < 2:
            raise ValueError(f"images='both' needs a batch_size of 2 or more, got {batch_size}")
        self.images = images
        self.prior = (prior or StrokePrior()) if images in ("prior", "both", "refined") else None
        self.generator = self._build_generator(generator)
        self._check_warm_start(generator_warm_start)
        self.generator_warm_start = generator_warm_start
        self._warm_start_prior = self.prior or prior or StrokePrior()
        self._generator_is_warm = False
        if images == "refined":
            self.published_artefacts = ("student", "refiner", "synthetic images")
        elif self.generator is not None:
            self.published_artefacts = ("student", "generator", "synthetic images")
        elif self.prior is not None:
            self.published_artefacts = ("student", "synthetic images")
        self.student_optimizer_factory = student_optimizer
        self.student_lr_scheduler_factory = student_lr_scheduler
        self.generator_optimizer_factory = generator_optimizer
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.steps_done = 0
        self._steps_before_batch = -1
        self.draw_seed: int | None = None
        self.followed: torch.Tensor | None = None  # released, (B, c); set in `annotate` by a method that follows it
        self.planned_calls: int | None = None
        self.plan_changed = False
        #: Accesses to private things that nothing is charged for, in words for the guarantee.
        self.data_accesses: list[str] = []
        self._restored: dict[str, Any] = {}

    def _build_generator(self, factory: Callable[..., nn.Module] | None) -> nn.Module | None:
        """What makes or changes images, checked before anything is spent on it."""
        if self.images == "refined":
            refiner = (factory or Refiner)(image_shape=self.image_shape)
            check_refiner(refiner, image_shape=self.image_shape)
            return refiner
        if self.images not in ("generator", "both"):
            return None
        generator = (factory or DAFLGenerator)(image_shape=self.image_shape)
        if not hasattr(generator, "latent_dim"):
            raise ValueError(
                f"generator must have a latent_dim for images={self.images!r}, {type(generator).__name__} has none"
            )
        return generator

    def _check_warm_start(self, steps: int) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"generator_warm_start must be 0 or more steps, got {steps!r}")
        if steps and self.images not in ("generator", "both"):
            raise ValueError(
                f"generator_warm_start={steps} needs a generator to start: images must be generator or both, got "
                f"{self.images!r}"
            )
        if steps and self.batch_size < 2:
            raise ValueError(f"generator_warm_start needs a batch_size of 2 or more, got {self.batch_size}")

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
        """The student's logits, (N, C, H, W) → (N, c)."""
        logits: torch.Tensor = self.student(images)
        return logits

    def configure_callbacks(self) -> list[Callback]:
        """Budget stop, guarantee and figures, unless the trainer was given its own."""
        return default_callbacks(self.trainer)

    @property
    def of_ensemble(self) -> bool:
        """Whether the annotator is for the answers of many teachers, of a file of `TeacherEnsemble`."""
        return False

    def setup(self, stage: str) -> None:
        """Loads the teacher, or the ensemble, for a fit, before any other work."""
        if stage != "fit" or self._teacher is not None:
            return
        self._teacher = self.load_ensemble() if self.of_ensemble else self._load_teacher()

    def _load_teacher(self) -> PrivateTeacher:
        source, network, private_data = self._teacher_source
        if isinstance(source, PrivateModel):
            if not isinstance(source, PrivateTeacher):
                raise TeacherError("one teacher was asked for, and an nn.ModuleList of several was given")
            source.require_usable(num_classes=self.num_classes, image_shape=self.image_shape)
            return source
        return PrivateTeacher.load(
            source,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            network=network,
            private_data=private_data,
        )

    def load_ensemble(self) -> PrivateEnsemble:
        """The teacher where it is many, for `setup` of a method that asks them all.

        Raises:
            TeacherError: The file is missing, or holds no ensemble of use.
        """
        source, network, private_data = self._teacher_source
        if isinstance(source, PrivateModel):
            if not isinstance(source, PrivateEnsemble):
                raise TeacherError(
                    "teacher must be the file of an ensemble, or an nn.ModuleList of networks in a script"
                )
            source.require_usable(num_classes=self.num_classes, image_shape=self.image_shape)
            return source
        return PrivateEnsemble.load(
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
        if self.annotator.is_open:
            # The same object in a second module, or a second fit.
            self.annotator.require_open_for(self.teacher.training, state=self._restored.get("annotator"))
        else:
            self.annotator.open(
                private_data=self.teacher.private_data,
                ledger=self.teacher.ledger,
                num_records=self.teacher.num_records or getattr(datamodule_of(self.trainer), "num_records", None),
                state=self._restored.get("annotator"),
                training=self.teacher.training,
                old_ledger=self.teacher.old_ledger,
            )
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

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Remembers where a step begins, to know one that was cut short."""
        self._steps_before_batch = self.steps_done

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

    def on_train_start(self) -> None:
        """Fixes the plan, and fits the generator to the prior where the run has not done so."""
        self._fix_plan()
        self.warm_start()

    def warm_start(self) -> None:
        """Fits the generator to images of the prior, before the first annotated step and once in a run."""
        if not self.generator_warm_start or self._generator_is_warm or self.steps_done:
            return
        assert self.generator is not None and self.draw_seed is not None
        error = fit_generator(
            self.generator,
            self._warm_start_prior,
            steps=self.generator_warm_start,
            batch_size=self.batch_size,
            image_shape=self.image_shape,
            latent_dim=self.latent_dim,
            seed=self.draw_seed,
            device=self.device,
        )
        self._generator_is_warm = True
        rank_zero_info(
            f"Generator fitted to {type(self._warm_start_prior).__name__} for {self.generator_warm_start} steps: mean "
            f"squared error {error:.3g}."
        )

    def _fix_plan(self) -> None:
        """Fixes how many calls this run plans, before its first: the guarantee is about the plan."""
        made = self.annotator.calls_made()
        plan = None
        if (
            self.trainer.max_epochs is not None
            and self.trainer.max_epochs >= 0
            and math.isfinite(self.trainer.num_training_batches)
        ):
            total = self.trainer.max_epochs * int(self.trainer.num_training_batches)
            plan = made + self.affordable_calls(total)
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

    def draw_latents(self, step: int) -> torch.Tensor | None:
        """What the generator makes the images of this step from; None without a generator.

        z, shape (n, latent_dim), where n is B, or B/2 for `images='both'`. For `images='refined'` those images of the
        prior, shape (B, C, H, W), that `images='prior'` would have in this step.
        """
        if self.generator is None:
            return None
        assert self.draw_seed is not None
        count = self.batch_size // 2 if self.images == "both" else self.batch_size
        draw = stream(self.draw_seed, step, self.global_rank, "prior" if self.images == "refined" else "latents")
        return self._latents(count, draw)

    def _latents(self, count: int, draw: torch.Generator) -> torch.Tensor:
        if self.images == "refined":
            return self._prior_images(count, draw)
        return torch.randn(count, self.latent_dim, generator=draw).to(self.device)

    def _prior_images(self, count: int, draw: torch.Generator) -> torch.Tensor:
        assert self.prior is not None
        return self.prior.sample(count, image_shape=self.image_shape, generator=draw, device=self.device)

    @property
    def latent_dim(self) -> int:
        """Width of the generator's input."""
        return int(getattr(self.generator, "latent_dim"))  # noqa: B009 - nn.Module types every attribute as a tensor

    @torch.no_grad()
    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        """A batch of synthetic images, shape (B, C, H, W), generated ones first."""
        parts = []
        if self.generator is not None and latents is not None:
            parts.append(self.generator(latents).float())
        left = self.batch_size - sum(len(part) for part in parts)
        if left:
            assert self.draw_seed is not None
            parts.append(self._prior_images(left, stream(self.draw_seed, step, self.global_rank, "prior")))
        return torch.cat(parts)

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """What the student is fitted to, shape (B, c), detached, through the annotator.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            images: What they are of, shape (B, C, H, W).
        """
        raise NotImplementedError(f"{type(self).__name__} has no annotation")

    def student_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What the student makes small, for each row, (B, c) → (B,): the cross-entropy to the released targets.

        Where `annotate` has left `followed`, a loss with that gradient instead.
        """
        if self.followed is not None:
            return following(outputs, self.followed)
        return soft_cross_entropy(outputs, targets)

    def update_student(self, images: torch.Tensor) -> torch.Tensor:
        """One step on what the annotator releases about `images`. Returns the released targets, shape (B, c)."""
        optimizer = self._optimizers()[0]
        with self.toggled_optimizer(optimizer):
            outputs = self.student(images)
            targets = self.annotate(outputs.detach(), images)
            self.step_student(self.student_loss(outputs.float(), targets).mean())
        return targets

    def step_student(self, loss: torch.Tensor) -> None:
        """Backward, one step of the student's optimizer and of its schedule; inside `toggled_optimizer`."""
        optimizer = self._optimizers()[0]
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            scheduler.step()
        self.log("train/student_loss", loss.detach())

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What the generator makes small.

        Args:
            images: Generated images with their graph, shape (n, C, H, W).
            targets: Released targets of these images, shape (n, c), held fixed.
        """
        raise NotImplementedError(f"{type(self).__name__} trains no generator")

    def update_generator(self, latents: torch.Tensor, targets: torch.Tensor) -> None:
        """One step of the generator, the student held fixed.

        Args:
            latents: What this step's images are made from, see `draw_latents`.
            targets: Released targets of their images, shape (n, c), detached: a gradient through them would carry the
                teacher past the noise.
        """
        assert self.generator is not None
        optimizer = self._optimizers()[1]
        with self.toggled_optimizer(optimizer), frozen_statistics(self.student):
            loss = self.generator_loss(self.generator(latents), targets)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train/generator_loss", loss.detach())

    def generator_parameters(self) -> Iterator[nn.Parameter]:
        """What the generator's optimizer steps."""
        assert self.generator is not None
        return self.generator.parameters()

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """Images for a person to look at, shape (count, C, H, W): the same latents each time."""
        draw = stream(self.draw_seed or 0, 0, 0, "grid")
        parts = []
        if self.generator is not None:
            latents = self._latents(count // 2 if self.images == "both" else count, draw)
            with torch.no_grad(), frozen_statistics(self.generator):
                parts.append(self.generator(latents).float())
        left = count - sum(len(part) for part in parts)
        if left and self.prior is not None:
            parts.append(self._prior_images(left, draw))
        return torch.cat(parts)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The student's optimizer, and the generator's if there is one."""
        make_student = self.student_optimizer_factory or _adam
        optimizers = [make_student(self.student.parameters())]
        if self.generator is not None:
            optimizers.append((self.generator_optimizer_factory or _adam)(self.generator_parameters()))
        if self.student_lr_scheduler_factory is None:
            return optimizers
        return optimizers, [self.student_lr_scheduler_factory(optimizers[0])]

    def _optimizers(self) -> list[Any]:
        optimizers = self.optimizers()
        return optimizers if isinstance(optimizers, list) else [optimizers]

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
        return self.annotator.guarantee(
            artefacts=self.published_artefacts,
            planned=None if self.plan_changed else self.planned_calls,
            data_accesses=self.data_accesses,
            assumptions=self.assumptions(),
            not_covered=("the teacher, unless it has a guarantee of its own",),
        )

    def covered_epsilon(self) -> float:
        """Record-level ε that a guarantee of this run states as things stand."""
        return self.annotator.covered_epsilon(None if self.plan_changed else self.planned_calls)

    def published_networks(self) -> dict[str, nn.Module]:
        """Networks that a guarantee of this run covers, by name."""
        networks: dict[str, nn.Module] = {"student": self.student}
        if self.generator is not None:
            networks["refiner" if self.images == "refined" else "generator"] = self.generator
        return networks

    def assumptions(self) -> list[str]:
        """What a guarantee of this run rests on besides the annotator."""
        return []

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
            "generator_is_warm": self._generator_is_warm,
            "planned_calls": self.planned_calls,
            "plan_changed": self.plan_changed,
            "looks": list(self.data_accesses),
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
        self._generator_is_warm = bool(self._restored.get("generator_is_warm"))
        self.planned_calls = self._restored.get("planned_calls")
        self.plan_changed = bool(self._restored.get("plan_changed"))
        # An access cannot be taken back by resuming without it.
        self.data_accesses = list(dict.fromkeys([*self.data_accesses, *self._restored.get("looks", [])]))


def _wrapped(teacher: nn.Module, num_classes: int, private_data: str | None) -> PrivateModel:
    name = private_data or "training data of a teacher given in a script"
    if isinstance(teacher, nn.ModuleList):
        return PrivateEnsemble(NetworkStack(list(teacher)), num_classes=num_classes, private_data=name)
    return PrivateTeacher(teacher, private_data=name)


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)
