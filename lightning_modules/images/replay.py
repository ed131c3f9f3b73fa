"""Earlier images and what was released about them: looking at an answer again costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_modules.losses.functional import label_posterior
from lightning_modules.losses.targets import Annotation
from lightning_modules.setting_checks import check_number, check_whole_number
from privacy.identity import CheckpointError

_MOST_BYTES = 2**29


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Steps of the student on earlier images, fitted to what was released about them.

    A released gradient is of the student's outputs at that time, and no loss to follow later: it would push on where
    the student has long gone. What is kept is the target that it made, y = softmax(outputs - γ·g̃), and the
    cross-entropy to that has a minimum, whatever the student has become. So it is for `student_target: gradients`, too.
    Of a noisy label that is corrected for its noise what is kept is `label_evidence`, which the student of each step
    makes a target of: to what an earlier student made of it, a later one would be held.

    Attributes:
        capacity: Images that are kept, the newest; 0 switches replay off. They are kept with the run's checkpoints,
            2·C·H·W + 4·c bytes for each, and are fewer where images would take more than 512 MiB (of 3x224x224 pixels
            1,783), but a batch at least.
        steps: Steps in each step of the run, from its second on, each on as many kept images as a batch has, drawn anew
            and with replacement. The learning-rate schedule does not count them.
        stride: How many times as long the step along the released gradient is in a replayed target: softmax(outputs -
            stride·γ·g̃). With more than 1 the target says less of what the student thought then, and more of what was
            released. Targets without a gradient (labels, `gradient_targets.outputs: probabilities`) are as they are.
    """

    capacity: int = 0
    steps: int = 1
    stride: float = 1.0

    def __post_init__(self) -> None:
        check_whole_number("replay.capacity", self.capacity, least=0)
        check_whole_number("replay.steps", self.steps, least=1)
        check_number("replay.stride", self.stride, least=1)

    def build(self, *, batch_size: int) -> ReplayMemory | None:
        """What keeps the images of a run with this batch size; None where replay is off.

        Raises:
            ValueError: It has no room for a batch.
        """
        if not self.capacity:
            return None
        if self.capacity < batch_size:
            raise ValueError(f"replay.capacity must be 0 or at least the batch size {batch_size}, got {self.capacity}")
        return ReplayMemory(self, batch_size=batch_size)


class ReplayMemory:
    """The newest images and targets of a run, on the CPU; the same in every process.

    It is not an `nn.Module`: what it holds grows, and a `state_dict` does not.
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

    def kept_of(self, annotation: Annotation) -> Tensor:
        """What is kept of an annotation, (B, c), float32: its evidence, or its targets with a gradient's lengthened."""
        if self._evidence != (annotation.evidence is not None):  # a resumed run's rows of the other kind are of no use
            self._evidence, self._kept, self._next = not self._evidence, 0, 0
        if annotation.evidence is not None:
            return annotation.evidence
        if annotation.step is None or self.settings.stride == 1:
            return annotation.targets.float()
        # log y is the outputs less one step, but for a constant.
        further = (self.settings.stride - 1) * annotation.step
        return torch.log_softmax(annotation.targets.float().log() - further, dim=1).exp()

    def targets(self, kept: Tensor, outputs: Tensor) -> Tensor:
        """Distributions (n, c) that kept rows make of the student's present logits (n, c), detached."""
        return label_posterior(outputs, kept) if self._evidence else kept

    def add(self, images: Tensor, targets: Tensor) -> None:
        """Keeps images (B, C, H, W), in half precision, and rows of `kept_of`, (B, c), in place of the oldest."""
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
        """Images (n, C, H, W), float32, and what is kept of them, (n, c), where n is `batch_size`."""
        rows = torch.randint(self._kept, (self.batch_size,), generator=generator)
        return self._images[rows].float(), self._targets[rows]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        # Not slices: a file holds all that a slice is cut from.
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
            CheckpointError: It is of another capacity: which images are the oldest, it says by their places.
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
