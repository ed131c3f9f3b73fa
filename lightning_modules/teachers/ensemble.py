"""Teachers on disjoint shards of the private data (DGD; DPDFD Algorithm 2): the raw material of votes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from lightning import Callback, LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from datamodules import ShardedRecords, Shards
from lightning_modules.losses.regression import check_linear, solve_head
from lightning_modules.networks import TwoConvNet, build_network
from lightning_modules.networks.stacked import (
    NetworkStack,
    stack_states,
    with_feature_extractor,
    without_feature_extractor,
)
from lightning_modules.runtime.area_under_curve import AreaUnderCurve, asks_for_auroc, auroc_name
from lightning_modules.runtime.hyperparameters import keep_plain_hyperparameters
from lightning_modules.runtime.predictions import images_of, prediction_callbacks
from lightning_modules.runtime.processes import check_strategy, processes_of, share_of
from lightning_modules.runtime.randomness import key, stream
from lightning_modules.runtime.runs import is_dev_run
from lightning_modules.runtime.validation import log_validation_accuracy, validation_metric
from lightning_modules.teachers.augmentation import shifted
from lightning_modules.teachers.joint_training import (
    JointOptimizer,
    JointTraining,
    SeparateTraining,
    StackedTraining,
    draws_at_random,
)
from lightning_modules.teachers.own_training import OwnTraining
from privacy.identity import CheckpointError
from privacy.mechanisms.vote_counts import vote_counts
from privacy.processes import Processes

__all__ = ["Schedule", "TeacherEnsemble", "rate_factor", "shuffled_passes"]

Schedule = Literal["one_cycle", "linear", "constant"]


def rate_factor(schedule: Schedule, *, step: int, steps: int) -> float:
    """What the learning rate is multiplied by at a step of `steps`.

    `linear` falls to 0 (DGD, implementation details); `one_cycle` rises over the first three tenths and falls to 0 by
    a cosine.

    >>> [rate_factor("linear", step=step, steps=4) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    done = step / steps
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return 1.0 - done
    if done < 0.3:
        return 0.04 + 0.96 * done / 0.3
    return 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))


def shuffled_passes(size: int, *, first: int, count: int, seed: int, teacher: int) -> Tensor:
    """Part of a teacher's endless sequence of records: one shuffled pass over its shard after another.

    It depends on (seed, teacher) and the shard's own size alone, and any part can be had without those before it.

    Args:
        size: Records in the shard.
        first: Place in the sequence at which the part begins.
        count: Length of the part.
        seed: The run's seed.
        teacher: Number of the teacher.

    Returns:
        (count,) int64 in [0, size).
    """
    passes = range(first // size, (first + count - 1) // size + 1)
    drawn = [torch.randperm(size, generator=stream(seed, number, teacher, "shard order")) for number in passes]
    start = first - passes.start * size
    return torch.cat(drawn)[start : start + count]


class TeacherEnsemble(LightningModule):
    """n classifiers, each trained by cross-entropy on a shard of its own, `teachers_at_once` of them at a time.

    **One changed record changes one teacher.** All others come out equal to the last bit, because nothing is shared: a
    teacher's initialisation, dropout and order of records follow from (seed, its number) and its own shard, the size of
    a batch and the number of steps are settings, every teacher has its own optimizer state and BatchNorm statistics,
    and nothing is clipped, averaged or stopped over several of them. What the fit writes is as private as its training
    data: only votes of all teachers, with noise, are bounded (`PrivateEnsemble`).

    A step trains all teachers of a chunk by one batch each. On a CPU they are spread over threads of one core each,
    with the same bits whatever `workers` and `teachers_at_once`; on an accelerator all are one call of `vmap`. An epoch
    is `data.steps_per_epoch` such steps; the checkpoint that follows it resumes to the same bits. The fit ends by
    itself when all teachers are trained: leave `trainer.max_epochs` at -1. Several processes (`ddp`) share out the
    teachers of a chunk, and end at the same ones.

    Source: DGD, discriminative stream, and Papernot et al. 2017. In DGD 3000 steps of 128 records for each of 250
    teachers, with Adam and a rate that falls from 0.05 linearly.

    Args:
        num_classes: c; linked from the data.
        image_shape: (C, H, W); linked from the data.
        network: Builds a teacher, called with those of `num_classes` and `image_shape` that it accepts. Default:
            `TwoConvNet`, DGD's (for SVHN with `hidden: [384, 192]`; for CIFAR10 DGD has a ViT, such as
            `torchvision.models.VisionTransformer`). Of one with a fixed `feature_extractor` (such
            as `ScatteringClassifier`) the features are computed once for all teachers.
        steps: Steps of each teacher.
        teachers_at_once: Teachers in training at a time: bounds the memory.
        optimizer: Default: Adam with the rate 3e-3.
        schedule: How the rate changes over `steps`, see `rate_factor`.
        shift: Pixels by which each image is moved at most, up or down and to either side, anew in each step. On 240
            MNIST digits of 28x28 pixels, 2 is worth more than anything else here; it is not in DGD.
        label_smoothing: Between 0 and 1.
        ridge: Penalty of a closed form in the place of training, see `solve_ridge`: for a network that learns a linear
            head and nothing else. A step then makes a whole chunk of teachers, each of its whole shard; `steps` plays
            no part, `optimizer`, `schedule` and `label_smoothing` are refused, and `data.batch_size` is but the fewest
            records that a shard may have. None trains.
        vectorised: Train a chunk by `vmap`; None does so except on a CPU, where it is slower.
        workers: Threads on a CPU; None as many as torch would use.

    Raises:
        ValueError: A setting out of range, or a network that does not give c logits for such an image.

    Attributes:
        paper: Letter that stored claims know the paper by (see `CITATION.cff`).
    """

    paper = "B"

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: Callable[..., nn.Module] | None = None,
        steps: int = 100,
        teachers_at_once: int = 25,
        optimizer: OptimizerCallable | None = None,
        schedule: Schedule = "one_cycle",
        shift: int = 0,
        label_smoothing: float = 0.0,
        ridge: float | None = None,
        vectorised: bool | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
        if schedule not in ("one_cycle", "linear", "constant"):
            raise ValueError(f"schedule must be one_cycle, linear or constant, got {schedule!r}")
        for name, value in (("steps", steps), ("teachers_at_once", teachers_at_once), ("workers", workers)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= shift < min(image_shape[1:]):
            raise ValueError(f"shift must be at least 0 and below the sides of images {image_shape}, got {shift}")
        self.save_hyperparameters()
        keep_plain_hyperparameters(self)
        self.automatic_optimization = False
        self.num_classes = num_classes
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.network_factory = network or TwoConvNet
        # Tried at once, so that a network which does not fit is told before any data are read. In a list: registered,
        # it would stand in the checkpoint as if it had been learnt.
        self._feature_extractor = [without_feature_extractor(self._whole_network(seed=0, teacher=0))[1]]
        kept = getattr(self._fresh_network(seed=0, teacher=0), "feature_extractor", None)
        if isinstance(kept, nn.Module) and kept.state_dict():
            raise ValueError(
                f"model.network: the feature extractor ({type(kept).__name__}) has weights or buffers, which would be "
                "kept once for each teacher: take one without, such as ScatteringClassifier"
            )
        if shift and self._feature_extractor[0] is not None:
            raise ValueError(
                f"shift={shift} moves images anew in each step, and the fixed features of model.network are computed "
                "once: set shift to 0"
            )
        if ridge is not None:
            if not ridge > 0:
                raise ValueError(f"ridge must be above 0, or null to train, got {ridge}")
            if optimizer is not None or schedule != "one_cycle" or label_smoothing:
                raise ValueError(
                    f"ridge={ridge} solves for the teachers at once: optimizer, schedule and label_smoothing would "
                    "play no part. Leave them out, or set ridge to null to train"
                )
            check_linear(self._fresh_network(seed=0, teacher=0))
        if self.hparams.get("network", "") is None:
            self.hparams["network"] = {"class_path": f"{TwoConvNet.__module__}.{TwoConvNet.__name__}"}
        self.steps = steps
        self.teachers_at_once = teachers_at_once
        self.optimizer_factory = optimizer
        self.schedule: Schedule = schedule
        self.shift = shift
        self.label_smoothing = label_smoothing
        self.ridge = ridge
        self.vectorised = vectorised
        self.workers = workers
        self.own_training = OwnTraining(type(self).__name__)
        self.anchor: nn.Parameter | None = None
        # Lists of networks register nothing: no `state_dict` holds a teacher.
        self.trained: list[nn.Module] = []
        self.step_in_chunk = 0
        self.draw_seed: int | None = None
        self.training_now: JointTraining | None = None
        self._joint: JointOptimizer | None = None
        self._restored: dict[str, Any] = {}
        self._records: ShardedRecords | None = None
        self._planned: tuple[int, Tensor, Tensor] | None = None
        self._asked: NetworkStack | None = None
        self._judged = 0
        self._tallies: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Without the anchor, which is there for DDP alone."""
        state = super().state_dict(*args, **kwargs)
        state.pop("anchor", None)
        return state

    @property
    def processes(self) -> Processes:
        """Those of this run: each trains its own part of a chunk."""
        return processes_of(self._trainer)

    @property
    def shards(self) -> Shards:
        """The data module.

        Raises:
            ValueError: It has no shards.
        """
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, Shards):
            raise ValueError(
                "an ensemble needs disjoint shards: wrap the data set, data: {class_path: Shards, init_args: {dataset: "
                f"..., num_teachers: 250}}}}, got {type(data).__name__}"
            )
        return data

    @property
    def chunk(self) -> range:
        """Numbers of the teachers that are in training."""
        first = len(self.trained)
        return range(first, min(first + self.teachers_at_once, self.shards.num_teachers))

    @property
    def own_chunk(self) -> range:
        """Those of them that this process trains. A teacher is the same whoever does: its seed is its number's."""
        return self.chunk[share_of(len(self.chunk), self.processes)]

    def teacher(self, index: int) -> nn.Module:
        """One trained teacher by itself, in eval mode: hooks on its layers fire, its BatchNorm statistics are its own.

        It is private; `PrivateEnsemble.unprotected` hands one out where an annotator is charged for it.
        """
        return with_feature_extractor(self.trained[index].eval(), self._feature_extractor[0])

    def forward(self, images: Tensor) -> Tensor:
        """Votes of the trained teachers, (N, C, H, W) → (N, c), int64; of those in training while there are no others.

        Raises:
            RuntimeError: There is neither.
        """
        teachers = self.trained or (self.training_now.networks() if self.training_now is not None else [])
        if not teachers:
            raise RuntimeError("no teacher is trained: fit the ensemble, or load its checkpoint")
        if self._asked is None or len(self._asked) != len(teachers) or not self.trained:
            self._asked = self._stack(teachers)
        return vote_counts(self._asked.logits(images).argmax(dim=2), num_classes=self.num_classes)

    def setup(self, stage: str) -> None:
        """Checks before a fit that the shards are those of the run that is resumed.

        Raises:
            ValueError: No shards, other shards than before, or a precision below float32.
            ProcessesError: A strategy that is not supported.
        """
        if stage != "fit":
            return
        check_strategy(self.trainer, averages_itself=True)
        if self.trainer.world_size > 1 and self.anchor is None:
            # DDP takes no module without parameters; nothing is ever computed with this one, and it is saved nowhere.
            self.anchor, self.strict_loading = nn.Parameter(torch.zeros(())), False
        if self.trainer.precision != "32-true":
            raise ValueError(f"trainer.precision must be 32-true for an ensemble, got {self.trainer.precision}")
        self.shards  # noqa: B018 - raises where there are none

    @property
    def _settings(self) -> dict[str, Any]:
        """What must not change between the teachers of one file, or their shards would overlap or differ in kind."""
        data = self.shards
        return {
            "num_teachers": data.num_teachers,
            "private_data": data.private_data,
            "evaluation": data.evaluation,
            "batch_size": data.batch_size,
            "steps": self.steps,
            "ridge": self.ridge,
            **data.partition,
        }

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One that stands for those of all teachers in training."""
        if before := self._restored.get("settings"):
            now = self._settings
            for name in dict.fromkeys([*now, *before]):
                if before.get(name) != now.get(name):
                    raise ValueError(
                        f"{name} was {before.get(name)!r} when the checkpoint's first teachers were trained, and is "
                        f"{now.get(name)!r} now: resume with the same, or start a new run without --ckpt_path"
                    )
        if self.draw_seed is None:
            self.draw_seed = self.processes.broadcast(torch.initial_seed())
        self._joint = JointOptimizer(self.processes)
        self._begin_chunk()
        return self._joint

    def on_fit_start(self) -> None:
        """Gives the training its identity, and puts the records, or fixed features of them, where they are used."""
        self.own_training.begin(self)
        self.own_training.register(None, in_memory=is_dev_run(self.trainer))
        shards = self.shards.shards
        if self._feature_extractor[0] is not None:
            rank_zero_info("Computing the fixed features of all private images once.")
            shards = shards.mapped(self._feature_extractor[0])
        self._records = shards.to(self.device)

    def on_train_start(self) -> None:
        """Ends at once where nothing is left to do."""
        self.trainer.should_stop = self.trainer.should_stop or not self.chunk

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of each teacher in training, on a batch (B, C, H, W) of its own shard."""
        optimizer = self.optimizers()
        assert self._joint is not None and not isinstance(optimizer, list)
        if self.ridge is not None:
            self._solve_chunk()
            # Without parts it changes nothing; Lightning writes no checkpoint where its count of steps has not moved.
            optimizer.step()
            return
        if not self.chunk:
            return
        self._joint.set_rate(rate_factor(self.schedule, step=self.step_in_chunk, steps=self.steps))
        optimizer.zero_grad()
        if self.training_now is not None:  # of a last, small chunk a process may have none
            images, labels = self.draw_batches(self.step_in_chunk)
            losses = self.training_now.backward(images, labels, step=self.step_in_chunk)
            self.log("train/loss", losses.mean())
        optimizer.step()
        self.step_in_chunk += 1
        self.log("ensemble/teachers_done", float(len(self.trained)), prog_bar=True)
        if self.step_in_chunk == self.steps:
            self._finish_chunk()

    def draw_batches(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (m, B, C, H, W) and labels (m, B) of one step, row j from the shard of teacher j of `own_chunk`."""
        assert self._records is not None and self.draw_seed is not None
        block = 100
        if self._planned is None or self._planned[0] != step // block:
            self._planned = (step // block, *self._plan(step // block * block, block))
        chosen, moves = (drawn[step % block] for drawn in self._planned[1:])
        images, labels = self._records.records.__getitems__(chosen.flatten())
        if self.shift:
            images = shifted(images, moves.flatten(0, 1))
        return images.unflatten(0, chosen.shape), labels.unflatten(0, chosen.shape)

    def _plan(self, start: int, steps: int) -> tuple[Tensor, Tensor]:
        """Positions (steps, m, B) of the records of some steps, and (steps, m, B, 2) how far their images are moved."""
        assert self._records is not None and self.draw_seed is not None
        size = self.shards.batch_size
        rows, moves = [], []
        for teacher in self.own_chunk:
            positions = self._records.positions(teacher)
            within = shuffled_passes(
                len(positions), first=start * size, count=steps * size, seed=self.draw_seed, teacher=teacher
            )
            rows.append((positions.start + within).view(steps, size))
            draw = stream(self.draw_seed, start, teacher, "shift")
            moves.append(torch.randint(-self.shift, self.shift + 1, (steps, size, 2), generator=draw))
        return torch.stack(rows, dim=1).to(self.device), torch.stack(moves, dim=1).to(self.device)

    def _fresh_network(self, *, seed: int, teacher: int) -> nn.Module:
        return without_feature_extractor(self._whole_network(seed=seed, teacher=teacher))[0]

    def _whole_network(self, *, seed: int, teacher: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, 0, teacher, "teacher"))
            return build_network(
                self.network_factory, num_classes=self.num_classes, image_shape=self.image_shape, name="model.network"
            )

    def _begin_chunk(self) -> None:
        """Takes the next teachers into training, or those that a checkpoint was taken of."""
        assert self._joint is not None and self.draw_seed is not None
        if self.training_now is not None:
            self.training_now.close()
            self.training_now = None
        self._planned = None
        self.step_in_chunk = 0
        if self.chunk and self.ridge is None:
            networks = [self._fresh_network(seed=self.draw_seed, teacher=teacher) for teacher in self.own_chunk]
            if active := self._restored.pop("active", None):
                self.step_in_chunk = int(active["step"])
                if len(next(iter(active["weights"].values()))) != len(self.chunk):
                    raise ValueError(
                        "teachers_at_once must be what it was when the checkpoint was written within a chunk, "
                        f"got {self.teachers_at_once}"
                    )
                own = share_of(len(self.chunk), self.processes)
                _load_states(networks, {name: values[own] for name, values in active["weights"].items()})
            self.training_now = self._training(networks) if networks else None
        self._joint.take_over(self.training_now)

    def _training(self, networks: list[nn.Module]) -> JointTraining:
        assert self.draw_seed is not None
        by_vmap = self.device.type != "cpu" if self.vectorised is None else self.vectorised
        settings: dict[str, Any] = {
            "make_optimizer": self.optimizer_factory or _adam,
            "label_smoothing": self.label_smoothing,
            "seed": self.draw_seed,
            "first": self.own_chunk.start,
            "random": draws_at_random(
                with_feature_extractor(networks[0], self._feature_extractor[0]), image_shape=self.image_shape
            ),
        }
        if by_vmap:
            return StackedTraining(networks, device=self.device, **settings)
        return SeparateTraining([network.to(self.device) for network in networks], workers=self.workers, **settings)

    def _solve_chunk(self) -> None:
        """The next teachers in closed form, each of its own shard alone."""
        assert self._records is not None and self.draw_seed is not None and self.ridge is not None
        solved = []
        for teacher in self.own_chunk:
            inputs, labels = self._records.records.__getitems__(torch.as_tensor(self._records.positions(teacher)))
            network = self._fresh_network(seed=self.draw_seed, teacher=teacher)
            solve_head(network, inputs.cpu(), labels.cpu(), penalty=self.ridge)
            solved.append(network)
        self.trained += self._of_all(solved)
        self.log("ensemble/teachers_done", float(len(self.trained)), prog_bar=True)
        self.trainer.should_stop = self.trainer.should_stop or not self.chunk

    def _finish_chunk(self) -> None:
        self.trained += self._of_all([] if self.training_now is None else self.training_now.networks())
        self._begin_chunk()
        self.trainer.should_stop = self.trainer.should_stop or not self.chunk

    def _of_all(self, own: list[nn.Module]) -> list[nn.Module]:
        """The trained networks of all processes, in the order of their numbers: a checkpoint holds all of them."""
        networks = []
        for rank, states in enumerate(self.processes.gather([network.state_dict() for network in own])):
            if rank == self.processes.rank:
                networks += own
                continue
            for state in states:
                networks.append(self._fresh_network(seed=0, teacher=0))
                networks[-1].load_state_dict(state)
        return [network.eval().requires_grad_(False) for network in networks]

    def _stack(self, teachers: list[nn.Module]) -> NetworkStack:
        return NetworkStack(
            teachers,
            at_once=self.teachers_at_once,
            vectorised=self.vectorised,
            workers=self.workers,
            feature_extractor=self._feature_extractor[0],
        )

    def on_validation_epoch_start(self) -> None:
        """Forgets what is counted anew: a fit judges each teacher once, when it is done."""
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            self._judged, self._tallies = 0, {}
        fresh = self.trained[self._judged :]
        self._asked = self._stack(fresh) if fresh else None

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Votes of those teachers that are new since the last validation, on held-out images and labels."""
        if self._asked is not None:
            self._tally(self._asked, batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Logs teachers done, the mean of their accuracies, and the accuracy of their vote."""
        new = self._asked is not None
        self._judged, self._asked = len(self.trained), None
        if self.trainer.sanity_checking:
            self._judged, self._tallies = 0, {}
            return
        self.log("ensemble/teachers_done", float(len(self.trained)), prog_bar=True)
        if any(self.processes.gather(bool(self._tallies))):
            mean, vote = self._accuracies()
            self.log("ensemble/mean_accuracy", mean, prog_bar=True)
            self.log("ensemble/vote_accuracy", vote, prog_bar=True)
            log_validation_accuracy(self, vote)
            self._log_auroc(beside=validation_metric(self.trainer))
            if new:
                rank_zero_info(
                    f"{len(self.trained)} teachers done: mean accuracy {mean:.4f}, accuracy of their vote {vote:.4f}"
                )

    def on_test_epoch_start(self) -> None:
        """Asks all teachers.

        Raises:
            RuntimeError: There are none.
        """
        if not self.trained:
            raise RuntimeError("no teacher is trained: give the checkpoint of an ensemble with --ckpt_path")
        self._tallies, self._asked = {}, self._stack(self.trained)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Votes of all teachers on the public test split."""
        assert self._asked is not None
        self._tally(self._asked, batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Logs the mean of the teachers' accuracies and the accuracy of their vote."""
        mean, vote = self._accuracies()
        self.log("test/accuracy", vote)
        self.log("test/mean_accuracy", mean)
        self._log_auroc(beside="test/accuracy")
        self._tallies, self._asked = {}, None

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Shares of the teachers' votes, (N, C, H, W) → (N, c): private, for no noise is on them.

        Raises:
            RuntimeError: No teacher is trained.
        """
        shares: Tensor = self(images_of(batch)).double() / len(self.trained)
        return shares

    def configure_callbacks(self) -> list[Callback]:
        """What writes predictions."""
        return [*prediction_callbacks(self.trainer)]

    def _tally(self, teachers: NetworkStack, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        decisions = teachers.logits(images).argmax(dim=2)
        counts = vote_counts(decisions, num_classes=self.num_classes).cpu()
        hits = (decisions == labels).sum(dim=1).cpu()
        if batch_idx in self._tallies:
            before, hits_before, _ = self._tallies[batch_idx]
            counts, hits = before + counts, torch.cat([hits_before, hits])
        self._tallies[batch_idx] = (counts, hits, labels.cpu())

    def _gathered(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Counts of votes, hits of each teacher, and labels, of the batches of all processes."""
        tallies = [own for given in self.processes.gather(list(self._tallies.values())) for own in given]
        counts, hits, labels = (list(values) for values in zip(*tallies, strict=True))
        return counts, hits, labels

    def _log_auroc(self, *, beside: str) -> None:
        """Logs the area under the curve of the shares of votes, where the data ask for it."""
        if not asks_for_auroc(self.trainer):
            return
        counts, _, labels = self._gathered()
        area = AreaUnderCurve(self.num_classes)
        area.add(torch.cat(counts), torch.cat(labels))
        self.log(auroc_name(beside), area.compute())

    def _accuracies(self) -> tuple[float, float]:
        """Mean of the teachers' accuracies, and accuracy of their vote."""
        counts, hits, labels = self._gathered()
        total = sum(len(values) for values in labels)
        mean = torch.stack(hits).sum(dim=0).double().mean() / total
        vote = sum(int((c.argmax(dim=1) == right).sum()) for c, right in zip(counts, labels, strict=True)) / total
        return float(mean), vote

    def on_fit_end(self) -> None:
        """Says what is missing."""
        if self.chunk:
            rank_zero_warn(
                f"{len(self.trained)} of {self.shards.num_teachers} teachers are trained, step {self.step_in_chunk} of "
                f"{self.steps} of the next: go on with --ckpt_path. Set trainer.max_epochs to -1 for a fit that goes "
                "on until all are"
            )

    def teardown(self, stage: str) -> None:
        """Ends the threads, and lets go of the records or of the features of them."""
        if self.training_now is not None:
            self.training_now.close()
        self._records = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the trained teachers, those in training, and the public name and size of the private data."""
        active = None
        if self._joint is not None and self.chunk and self.ridge is None:
            in_training = self._of_all([] if self.training_now is None else self.training_now.networks())
            active = {"step": self.step_in_chunk, "weights": stack_states(in_training)}
        checkpoint["ensemble"] = {
            "done": len(self.trained),
            "weights": stack_states(self.trained),
            "active": active,
            "draw_seed": self.draw_seed,
            "settings": self._settings,
            "assumptions": list(self.shards.assumptions),
        }
        self.own_training.save(checkpoint, trainer=self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the trained teachers over; those in training when the optimizers are made.

        Raises:
            CheckpointError: It is of no ensemble.
        """
        if "ensemble" not in checkpoint:
            raise CheckpointError(
                "the checkpoint holds no ensemble: give one that a fit of TeacherEnsemble has written"
            )
        self.own_training.load(checkpoint)
        self._restored = dict(checkpoint["ensemble"])
        self.draw_seed = self._restored["draw_seed"]
        self.trained = [self._fresh_network(seed=0, teacher=0).eval() for _ in range(self._restored["done"])]
        _load_states(self.trained, self._restored.pop("weights"))
        for network in self.trained:
            network.requires_grad_(False)


def _load_states(networks: list[nn.Module], states: dict[str, Tensor]) -> None:
    for index, network in enumerate(networks):
        network.load_state_dict({name: values[index] for name, values in states.items()})


def _adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    # One call for all weights: in threads, what is between calls is done by one of them at a time.
    return torch.optim.Adam(parameters, lr=3e-3, fused=True)
