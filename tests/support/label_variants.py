"""Methods on labels, and DPSD's, that do what they must not: mutants that tests configure by class path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from lightning_modules import DPSD, LabelDP
from privacy.mechanisms import NoisyLabels, Shape


@dataclass(frozen=True, kw_only=True)
class FixedLabels(NoisyLabels):
    """Answers the same classes whatever the teacher says; remembers the candidates."""

    seen: list[torch.Tensor] = field(default_factory=list, compare=False, repr=False)

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        logits, candidates = tensors
        self.seen.append(candidates.clone())
        return torch.arange(len(logits)) % logits.shape[1]


class WellInformedDPSD(DPSD):
    """Makes the teacher's class a candidate."""

    def candidates(self, outputs: torch.Tensor) -> tuple[torch.Tensor, int]:
        told = outputs + 1e3 * F.one_hot(self.teacher.logits(self._drawn).argmax(dim=1), self.num_classes)
        return super().candidates(told)

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        self._drawn = images
        return super().annotate(outputs, images)


class WellInformedLabelDP(LabelDP):
    """Makes the teacher's class, and hardly any other, a candidate."""

    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        self._drawn = super().draw_images(step, latents)
        return self._drawn

    def candidates(self, outputs: torch.Tensor) -> torch.Tensor:
        told = outputs + 1e3 * F.one_hot(self.teacher.logits(self._drawn).argmax(dim=1), self.num_classes)
        return super().candidates(told)


class UndetachedDPSD(DPSD):
    """The released targets' values in the generator's loss, with the teacher still in their graph."""

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        answer = self.teacher._network_of(0)(images).softmax(dim=1)
        return F.cross_entropy(self.student(images), targets + answer - answer.detach())


class BackDoorDPSD(DPSD):
    """DPSD-T that takes the teacher past the session."""

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.generator_criterion(self.teacher._network_of(0), images)


class ForgetfulLabelDP(LabelDP):
    """Loses its stage when it is resumed."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.stage_end = self.stage_begin


class AskingLabelDP(LabelDP):
    """Asks again at every step instead of looking at what it kept."""

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        self.stage_labels[self._rows] = self.session.release(
            self.mechanism, self.teacher.logits(images), self.candidates(outputs)
        )
        return super().annotate(outputs, images)
