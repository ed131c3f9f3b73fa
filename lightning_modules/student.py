"""The student of a method and its training, with replay of earlier images and releases, which costs no privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_modules.losses.targets import Annotation, label_posterior
from lightning_modules.networks import NetworkCallable, SmallCNN
from privacy.checks import check_count, check_number, settings_of
from privacy.identity import CheckpointError

_MOST_BYTES = 2**29


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Settings for extra student steps on earlier images and releases.

    A released gradient is only valid for the student's outputs at that time: later it would push a student that has
    moved on. So the target that it made, y = softmax(outputs - γ·g̃), is stored, whose cross-entropy has a minimum for
    any later student; also for `student_target: gradients`. For noisy labels corrected for their noise,
    `label_evidence` is stored and made into a target with the student's current outputs: a target made with an earlier
    student's would hold it back.

    Attributes:
        capacity: Number of newest images to store; 0 turns replay off. They are part of the run's checkpoints, with
            2·C·H·W + 4·c bytes each, and limited to 512 MiB of images (1,783 images of 3x224x224 pixels), but at least
            a batch.
        steps: Number of replay steps in each step of the run, from the second on, each on a new batch of stored images,
            drawn with replacement. The learning-rate schedule does not count them.
        stride: Factor of the step along the released gradient in a replayed target: softmax(outputs - stride·γ·g̃).
            Above 1 the target depends less on the student of that time and more on the release. Targets without a
            gradient (labels, `gradient_targets.outputs: probabilities`) do not change.
    """

    capacity: int = 0
    steps: int = 1
    stride: float = 1.0

    def __post_init__(self) -> None:
        check_count("replay.capacity", self.capacity, minimum=0)
        check_count("replay.steps", self.steps, minimum=1)
        check_number("replay.stride", self.stride, least=1)


class ReplayMemory:
    """The newest images and targets of a run, on the CPU; the same in every process.

    It is not an `nn.Module`, since its contents grow and a `state_dict` does not.
    """

    def __init__(self, settings: Replay, *, batch_size: int) -> None:
        self.settings = settings
        self.batch_size = batch_size
        self._images = torch.empty(0)
        self._targets = torch.empty(0)
        self._evidence = False
        self._kept: int = 0
        self._next: int = 0

    def __len__(self) -> int:
        return self._kept

    def rows_of(self, annotation: Annotation) -> Tensor:
        """Rows to store for an annotation, (B, c), float32: its evidence, or its targets extended by `stride`."""
        if self._evidence != (annotation.evidence is not None):  # a resumed run may hold rows of the other kind
            self._evidence, self._kept, self._next = not self._evidence, 0, 0
        if annotation.evidence is not None:
            return annotation.evidence
        if annotation.step is None or self.settings.stride == 1:
            return annotation.targets.float()
        # log y is the outputs minus one step, up to a constant.
        further = (self.settings.stride - 1) * annotation.step
        return torch.log_softmax(annotation.targets.float().log() - further, dim=1).exp()

    def targets(self, rows: Tensor, outputs: Tensor) -> Tensor:
        """Target distributions (n, c) from stored rows and the student's current detached logits (n, c)."""
        return label_posterior(outputs, rows) if self._evidence else rows

    def add(self, images: Tensor, targets: Tensor) -> None:
        """Stores images (B, C, H, W), in half precision, and rows (B, c) of `rows_of`; replaces the oldest."""
        if not self._kept:
            room = max(len(images), min(self.settings.capacity, _MOST_BYTES // (2 * images[0].numel())))
            self._images = torch.empty(room, *images.shape[1:], dtype=torch.float16)
            self._targets = torch.empty(room, *targets.shape[1:])
        rows = (self._next + torch.arange(len(images))) % len(self._images)
        self._images[rows] = images.half()
        self._targets[rows] = targets.float()
        self._next = int((rows[-1] + 1) % len(self._images))
        self._kept = min(self._kept + len(images), len(self._images))

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws images (n, C, H, W), float32, and their stored rows (n, c), where n is `batch_size`."""
        rows = torch.randint(self._kept, (self.batch_size,), generator=generator)
        return self._images[rows].float(), self._targets[rows]

    def state(self) -> dict[str, Any]:
        """State for a checkpoint."""
        # Saving a slice would save the whole tensor.
        return {
            "images": self._images[: self._kept].clone(),
            "targets": self._targets[: self._kept].clone(),
            "next": self._next,
            "evidence": self._evidence,
            "capacity": self.settings.capacity,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`.

        Raises:
            CheckpointError: The capacity differs, so that positions do not tell which images are the oldest.
        """
        capacity = state["capacity"]
        if capacity != self.settings.capacity:
            raise CheckpointError(
                f"replay.capacity was {capacity} and is {self.settings.capacity}: resume with {capacity}"
            )
        self._kept = 0
        if len(state["images"]):
            self._next = 0
            self.add(state["images"], state["targets"])
        self._next, self._evidence = int(state["next"]), bool(state["evidence"])


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Settings of the student and its training.

    Attributes:
        network: Builds the student.
        balance: Exponent b of the weight n_y^-b that a sample of class y has in the loss, where n_y samples of the
            batch (of this process's share) have targets of that class: 0 weighs all samples alike, 1 all classes.
            Otherwise classes that a prior seldom draws are learnt late. It costs no privacy. Not for noisy labels: rare
            ones are most often wrong, and would have the largest weight.
        replay: Steps on earlier images and releases, at no privacy cost; off unless it has a capacity.
        optimizer: Builds the optimizer; null is Adam at 1e-3.
        lr_scheduler: Builds the schedule, stepped once per student step; null is none.
    """

    network: NetworkCallable = SmallCNN
    balance: float = 0.0
    replay: Replay = Replay()
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None

    def __post_init__(self) -> None:
        # A script's checkpoint holds plain values.
        object.__setattr__(self, "replay", settings_of(Replay, self.replay, name="student.replay"))
        check_number("student.balance", self.balance, least=0, most=1)
