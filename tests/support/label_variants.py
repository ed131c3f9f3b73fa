"""Labels that are the same whatever the teacher says, and LabelDP that loses its stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from lightning_modules import LabelDP
from privacy.mechanisms import NoisyLabels, Shape


@dataclass(frozen=True, kw_only=True)
class FixedLabels(NoisyLabels):
    """Answers the same classes whatever the teacher says; remembers the candidates."""

    seen: list[torch.Tensor] = field(default_factory=list, compare=False, repr=False)

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        logits, candidates = tensors
        self.seen.append(candidates.clone())
        return torch.arange(len(logits)) % logits.shape[1]


class ForgetfulLabelDP(LabelDP):
    """Loses its stage when it is resumed."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.stage_end = self.stage_begin
