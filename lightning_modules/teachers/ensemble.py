"""Teachers on disjoint shards of the private data, for votes (DGD) and summed gradients (DPDFD Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning import Callback
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from datamodules import ShardedRecords, Shards
from lightning_modules.callbacks.results import PredictionWriter
from lightning_modules.networks import NetworkCallable, TwoConvNet
from lightning_modules.networks.feature_cache import digest_of
from lightning_modules.teachers.ensemble_networks import (
    EnsembleNetworks,
    NetworkStack,
    check_linear,
    restored,
    solve_head,
    stacked,
)
from lightning_modules.teachers.joint_training import JointTraining
from lightning_modules.teachers.own_training import OwnTraining
from lightning_modules.teachers.private_teacher import tensors_digest
from lightning_modules.training.evaluation import Evaluated, Evaluation, require_monitored, validation_names
from lightning_modules.training.hyperparameters import keep_plain_hyperparameters
from lightning_modules.training.manual_optimization import OptimizedGroup
from lightning_modules.training.run import check_strategy, datamodule_as, missing_callbacks, processes_of, share_of
from privacy.checks import check_choice, check_count, check_number
from privacy.identity import CheckpointError
from privacy.mechanisms.noisy_votes import vote_counts
from privacy.processes import Processes, require_same

Schedule = Literal["one_cycle", "linear"]


def rate_factor(schedule: Schedule, *, step: int, steps: int) -> float:
    """Factor of the learning rate at one of `steps` steps.

    `linear` falls to 0 (DGD, implementation details); `one_cycle` rises over the first three tenths and falls to 0 by
    a cosine.

    >>> [rate_factor("linear", step=step, steps=4) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    done = step / steps
    if schedule == "linear":
        return 1.0 - done
    if done < 0.3:
        return 0.04 + 0.96 * done / 0.3
    return 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))


class TeacherEnsemble(Evaluated):
    """n classifiers, each trained by cross-entropy on its own shard, `teachers_at_once` of them at a time.

    **One changed record changes one teacher.** All others come out equal to the last bit, because nothing is shared: a
    teacher's initialisation, dropout and order of records follow from (seed, its number) and its own shard, batch size
    and number of steps are settings, every teacher has its own optimizer state and BatchNorm statistics, and nothing is
    clipped, averaged or stopped across teachers. The fit's output is as private as its training data: only noisy votes
    of all teachers are bounded (`PrivateEnsemble`).

    A step trains each teacher of a chunk on one batch, with the same bits for any `teachers_at_once` and any number of
    threads and processes. An epoch is `data.steps_per_epoch` such steps; the checkpoint after it holds the finished
    teachers and resumes to the same bits, while unfinished teachers start again. The fit ends by itself when all
    teachers are trained: leave `trainer.max_epochs` at -1.

    Source: DGD, discriminative stream, and Papernot et al. 2017. DGD takes 3000 steps of 128 records for each of 250
    teachers, with Adam and a rate that falls linearly from 0.05.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        network: Builds a teacher, called with those of `num_classes` and `image_shape` that it accepts. Default:
            `TwoConvNet`, which DGD uses except on CIFAR10 and SVHN. With a fixed `feature_extractor`
            (`LinearOnFeatures`) the features are computed once for all teachers.
        steps: Number of steps per teacher.
        teachers_at_once: Number of teachers trained at a time, which limits memory and the work lost by interruptions.
        optimizer: Default: Adam with rate 3e-3.
        schedule: Schedule of the rate over `steps`; see `rate_factor`.
        shift: Largest number of pixels by which each image is moved in either direction, redrawn in each step. On 240
            MNIST digits of 28x28 pixels, 2 helps more than anything else here; it is not in DGD.
        label_smoothing: Between 0 and 1.
        ridge: Penalty of a closed-form solution instead of training (see `solve_ridge`), for a network that learns only
            a linear head. A step then makes a whole chunk of teachers from their whole shards; `steps` has no effect,
            `optimizer`, `schedule` and `label_smoothing` are refused, and `data.batch_size` is the fewest records that
            a shard may have. None trains.

    Raises:
        ValueError: A setting is out of range, or the network does not give c logits for such an image.
    """

    paper = "DGD"

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: NetworkCallable = TwoConvNet,
        steps: int = 100,
        teachers_at_once: int = 25,
        optimizer: OptimizerCallable | None = None,
        schedule: Schedule = "one_cycle",
        shift: int = 0,
        label_smoothing: float = 0.0,
        ridge: float | None = None,
    ) -> None:
        super().__init__()
        check_number("label_smoothing", label_smoothing, least=0, below=1)
        check_choice("schedule", schedule, get_args(Schedule))
        check_count("steps", steps, minimum=1)
        check_count("teachers_at_once", teachers_at_once, minimum=1)
        check_number("shift", shift, least=0, below=min(image_shape[1:]))
        check_number("ridge", ridge, above=0, null="training")
        self.save_hyperparameters()
        keep_plain_hyperparameters(self)
        self.automatic_optimization = False
        self.num_classes = num_classes
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.networks = EnsembleNetworks(network, num_classes=num_classes, image_shape=self.image_shape)
        if shift and self.networks.feature_extractor is not None:
            raise ValueError(f"shift={shift} moves images, and fixed features are computed once: set shift to 0")
        if ridge is not None:
            check_linear(self.networks.fresh(seed=0, teacher=0))
            if optimizer is not None or schedule != "one_cycle" or label_smoothing:
                raise ValueError(f"optimizer, schedule and label_smoothing would have no effect with ridge={ridge}")
        self.steps = steps
        self.teachers_at_once = teachers_at_once
        self.optimizer_factory = optimizer
        self.schedule: Schedule = schedule
        self.shift = shift
        self.label_smoothing = label_smoothing
        self.ridge = ridge
        self.own_training = OwnTraining(type(self).__name__)
        # By whose steps Lightning counts; DDP needs a module with parameters. No checkpoint has it.
        self.anchor, self.strict_loading = nn.Parameter(torch.zeros(())), False
        # A list registers no modules: no `state_dict` holds a teacher.
        self.trained_teachers: list[nn.Module] = []
        self.draw_seed: int | None = None
        self.training_now: JointTraining | None = None
        self._settings_before: Mapping[str, Any] | None = None
        self._records: ShardedRecords | None = None
        self.evaluation = Evaluation(num_classes)

    @property
    def processes(self) -> Processes:
        """Processes of this run, each of which trains its part of a chunk."""
        return processes_of(self._trainer)

    @property
    def shards(self) -> Shards:
        return datamodule_as(Shards, self.trainer, "an ensemble needs disjoint shards, data.class_path: Shards")

    @property
    def chunk(self) -> range:
        """Numbers of the teachers in training."""
        first = len(self.trained_teachers)
        return range(first, min(first + self.teachers_at_once, self.shards.num_teachers))

    @property
    def own_chunk(self) -> range:
        """Numbers of the teachers that this process trains; their seeds follow from the numbers alone."""
        return self.chunk[share_of(len(self.chunk), self.processes)]

    def forward(self, images: Tensor) -> Tensor:
        """Votes of the trained teachers, (N, C, H, W) → (N, c), int64; until there are any, of those in training.

        Raises:
            RuntimeError: There are neither.
        """
        return vote_counts(self._decisions(images), num_classes=self.num_classes)

    def _decisions(self, images: Tensor, *, since: int = 0) -> Tensor:
        """Classes (n, N) that the trained teachers from number `since` on give images (N, C, H, W)."""
        teachers = self.trained_teachers[since:]
        if not teachers and self.training_now is not None:  # a fit that ends before its first chunk is measured too
            teachers = self.training_now.copies()
        if not teachers:
            raise RuntimeError("no teacher is trained: fit the ensemble, or give its checkpoint with --ckpt_path")
        return NetworkStack(teachers, feature_extractor=self.networks.feature_extractor).logits(images).argmax(dim=2)

    precisions: ClassVar[tuple[str, ...]] = ("32-true", "32")

    # --- fit hooks ---

    def setup(self, stage: str) -> None:
        """Raises `ProcessesError` for a strategy that is not supported."""
        if stage == "fit":
            check_strategy(self.trainer, self)

    @property
    def _settings(self) -> dict[str, Any]:
        """Settings that all teachers of a file must share, or their shards would overlap or differ in kind."""
        data = self.shards
        return {
            "num_teachers": data.num_teachers,
            "private_data": data.private_data,
            "batch_size": data.batch_size,
            "steps": self.steps,
            "ridge": self.ridge,
            **data.shard_settings,
            "teachers_at_once": self.teachers_at_once,
        }

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns a dummy optimizer, by which Lightning counts steps: each teacher has its own, which is tried here."""
        OptimizedGroup(self.networks.fresh(seed=0, teacher=0).parameters(), self.optimizer_factory).try_out()
        return torch.optim.SGD([self.anchor], lr=0.0)

    def on_fit_start(self) -> None:
        """Gives the training its identity, and moves the records, or fixed features of them, to the device.

        Raises:
            ValueError: Settings or records differ from those of the checkpoint's teachers.
        """
        names = {"ensemble/teachers_done"} | ({"train/loss"} if self.ridge is None else set())
        names |= {"ensemble/mean_accuracy", *named} if (named := validation_names(self.trainer)) else set()
        require_monitored(self.trainer, names)
        records: Any = self.shards.shards.records
        ids, order = records.ids.sort()
        now = {**self._settings, "records": tensors_digest({"ids": ids, "labels": records.labels[order]}).hex()}
        # Divided in two ways, a record would be in the shards of two teachers.
        require_same(self.processes, repr(now), "settings or private records")
        before = self._settings_before or now
        if before.get("records") != now["records"]:  # printed nowhere, as it is of private data
            raise ValueError("records differ from those of the first teachers: one may be in two shards. Begin anew")
        for name in dict.fromkeys([*now, *before]):
            if before.get(name) != now.get(name):
                raise ValueError(f"{name} was {before.get(name)!r} for the first teachers and is {now.get(name)!r} now")
        self._settings_before = now
        if self.draw_seed is None:
            self.draw_seed = self.processes.broadcast(torch.initial_seed())
        self.own_training.begin(self)
        self.own_training.register(None)
        shards = self.shards.shards
        if (extractor := self.networks.feature_extractor) is not None:
            rank_zero_info("Computing the fixed features of all private images once.")
            shards = shards.mapped(extractor, key=digest_of(extractor))
        self._records = shards.to(self.device)

    def on_train_start(self) -> None:
        """Begins to train the first teachers; ends at once if none are left."""
        self._begin_chunk()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of each teacher in training, on a batch (B, C, H, W) of its own shard."""
        if self.ridge is not None:
            self._end_chunk(self._solved())
        elif (now := self.training_now) is not None:
            losses = now.step(rate_factor(self.schedule, step=now.steps_done, steps=self.steps))
            if len(losses):  # a process may have none of a last, small chunk
                self.log("train/loss", losses.mean())
            if now.steps_done == self.steps:
                self._end_chunk(now.copies())
        self.log("ensemble/teachers_done", float(len(self.trained_teachers)), prog_bar=True)
        # Lightning writes no checkpoint unless its count of steps has grown.
        self.optimizers().step()  # type: ignore[union-attr]

    def _begin_chunk(self) -> None:
        """Begins to train the next teachers."""
        assert self._records is not None and self.draw_seed is not None
        self.training_now = None
        self.trainer.should_stop = self.trainer.should_stop or not self.chunk
        if self.ridge is not None or not self.chunk:
            return
        networks = [self.networks.fresh(seed=self.draw_seed, teacher=teacher) for teacher in self.own_chunk]
        self.training_now = JointTraining(
            [network.to(self.device) for network in networks],
            records=self._records,
            teachers=self.own_chunk,
            batch_size=self.shards.batch_size,
            # Fused into one call for all weights: between calls, only one thread at a time would work.
            make_optimizer=self.optimizer_factory or partial(torch.optim.Adam, lr=3e-3, fused=True),
            seed=self.draw_seed,
            shift=self.shift,
            label_smoothing=self.label_smoothing,
            random=self.networks.random,
        )

    def _solved(self) -> list[nn.Module]:
        """Solves the next teachers in closed form, each from its own shard."""
        assert self._records is not None and self.draw_seed is not None and self.ridge is not None
        solved = []
        for teacher in self.own_chunk:
            inputs, labels = self._records.records.__getitems__(torch.as_tensor(self._records.positions(teacher)))
            network = self.networks.fresh(seed=self.draw_seed, teacher=teacher)
            solved.append(solve_head(network, inputs.float().cpu(), labels.cpu(), penalty=self.ridge))
        return solved

    def _end_chunk(self, own: list[nn.Module]) -> None:
        # Those of all processes, in the order of their numbers: a checkpoint holds all of them.
        gathered = self.processes.gather([network.state_dict() for network in own])
        states = stacked([state for states in gathered for state in states])
        self.trained_teachers += restored(self.networks.fresh(seed=0, teacher=0), states)
        self._begin_chunk()

    def on_fit_end(self) -> None:
        if self.chunk:
            rank_zero_warn(
                f"{len(self.trained_teachers)} of {self.shards.num_teachers} teachers are trained: go on with "
                "--ckpt_path"
            )

    def teardown(self, stage: str) -> None:
        """Frees the networks in training, and the records or their features."""
        self.training_now = self._records = None

    # --- evaluation ---

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Mean of teachers' accuracies on held-out images and labels, and accuracy of the vote of all.

        A fit evaluates the newest chunk while others are in training, and then all; any other validation all.
        """
        if self.trained_teachers:
            of_all = self.trainer.state.fn != "fit" or not self.chunk
            since = 0 if of_all else max(0, len(self.trained_teachers) - self.teachers_at_once)
            votes = self._evaluate(batch, since=since, mean_name="ensemble/mean_accuracy")
            if of_all:
                self.evaluation.log("val", self, votes, batch[1])

    def on_test_start(self) -> None:
        """Raises `PartitionError` for data of which other records are public than in training."""
        self.own_training.require_partition(self.trainer)

    on_validation_start = on_predict_start = on_test_start

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluation.log("test", self, self._evaluate(batch, mean_name="test/mean_accuracy"), batch[1])

    def _evaluate(self, batch: tuple[Tensor, Tensor], *, mean_name: str, since: int = 0) -> Tensor:
        """Votes (N, c) on a batch; logs the mean of the teachers' accuracies."""
        decisions, labels = self._decisions(batch[0], since=since), batch[1]
        mean = (decisions == labels).float().mean()
        self.log(mean_name, mean, prog_bar=True, batch_size=len(labels), sync_dist=True)
        return vote_counts(decisions, num_classes=self.num_classes)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Shares of the teachers' votes, (N, C, H, W) → (N, c): private, since no noise was added."""
        images = batch[0] if isinstance(batch, (list, tuple)) else batch
        shares: Tensor = self(images).double() / len(self.trained_teachers)
        return shares

    def configure_callbacks(self) -> list[Callback]:
        return missing_callbacks(self.trainer, PredictionWriter)

    # --- checkpoints ---

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the trained teachers, and the public name and size of the private data."""
        settings = self._settings_before or self._settings  # not those of data on which it was tested since
        checkpoint["state_dict"] = {}  # without the anchor
        checkpoint["ensemble"] = {
            "done": len(self.trained_teachers),
            "weights": stacked([network.state_dict() for network in self.trained_teachers]),
            "draw_seed": self.draw_seed,
            "settings": settings,
        }
        self.own_training.save(checkpoint, trainer=self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the trained teachers.

        Raises:
            CheckpointError: The checkpoint is not of an ensemble.
        """
        if "ensemble" not in checkpoint:
            raise CheckpointError("the checkpoint holds no ensemble: give one of a TeacherEnsemble")
        self.own_training.load(checkpoint)
        content = checkpoint["ensemble"]
        self.draw_seed, self._settings_before = content["draw_seed"], content["settings"]
        self.trained_teachers = restored(self.networks.fresh(seed=0, teacher=0), content["weights"])
