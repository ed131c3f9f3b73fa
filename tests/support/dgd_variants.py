"""DGD that does what it must not: mutants that tests configure by class path; and votes without noise."""

from __future__ import annotations

from typing import Any

import torch

from lightning_modules.dgd import DGD
from privacy.mechanisms import NoisyVotes, Shape


class ForgetfulDGD(DGD):
    """Loses the labels when it is resumed."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.query_set.labels = self.query_set.labels[:0]
        if self.phase == "student":
            self.phase_index, self.phase_step = 2, 0


class CuriousDGD(DGD):
    """Looks at the votes for images that nobody is charged for."""

    def on_train_epoch_end(self) -> None:
        images = self.draw_images(0, self.draw_latents(0))
        agree = self.teacher.votes(images).argmax(dim=1) == self(images).argmax(dim=1)
        self.log("train/agreement", agree.float().mean())


class GuidedDGD(DGD):
    """Chooses what to ask by the votes."""

    def choose_queries(self) -> torch.Tensor:
        images = super().choose_queries()
        return images[self.teacher.votes(images).amax(dim=1).argsort()]


class LedDGD(DGD):
    """Chooses what to ask by what one teacher says of it."""

    def choose_queries(self) -> torch.Tensor:
        images = super().choose_queries()
        return images[self.teacher.each(images)[-1, :, 0].argsort()]


def plain_votes(self: NoisyVotes, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Says what most teachers say, in the place of `NoisyVotes.answer`: ties and noise tell no two runs apart."""
    return tensors[0].argmax(dim=1)
