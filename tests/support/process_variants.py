"""Methods that several processes must not be given: mutants that tests configure by class path."""

from __future__ import annotations

import torch

from lightning_modules.dpdfd import DPDFD


class UnsharedDPDFD(DPDFD):
    """Each process follows its own gradient."""

    def descend(self, name: str, loss: torch.Tensor, *, scheduled: bool = True) -> None:
        optimizer = self.optimizer(name)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class FailingDPDFD(DPDFD):
    """One process fails alone, in its second step."""

    def training_step(self, batch: int, batch_idx: int) -> None:
        if self.steps_done == 1 and self.global_rank == 1:
            raise RuntimeError("this process alone")
        super().training_step(batch, batch_idx)
