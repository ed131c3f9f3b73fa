"""Accuracies of an ensemble whose teachers are evaluated a few at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lightning_modules.evaluation import AreaUnderCurve
from lightning_modules.networks.stacked import NetworkStack
from privacy.mechanisms.votes import vote_counts
from privacy.processes import Processes

__all__ = ["EnsembleAccuracy"]


class EnsembleAccuracy:
    """Votes and correct decisions of all teachers evaluated so far, for each batch of a split.

    Args:
        num_classes: c.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._evaluated = 0
        self._now: NetworkStack | None = None
        self._of_batch: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def reset(self) -> None:
        """Forgets everything."""
        self._evaluated, self._now, self._of_batch = 0, None, {}

    def begin(self, trained: list[nn.Module], *, stack: Callable[[list[nn.Module]], NetworkStack]) -> None:
        """Begins an evaluation of those teachers that are new since the last one."""
        fresh = trained[self._evaluated :]
        self._now = stack(fresh) if fresh else None
        self._evaluated = len(trained)

    def add(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        """Evaluates them on a batch of images (N, C, H, W) and labels (N,) with this number."""
        if self._now is None:
            return
        images, labels = batch
        decisions = self._now.logits(images).argmax(dim=2)
        counts = vote_counts(decisions, num_classes=self.num_classes).cpu()
        hits = (decisions == labels).sum(dim=1).cpu()
        if number in self._of_batch:
            counts_before, hits_before, _ = self._of_batch[number]
            counts, hits = counts_before + counts, torch.cat([hits_before, hits])
        self._of_batch[number] = (counts, hits, labels.cpu())

    def compute(self, processes: Processes) -> tuple[float, float, float] | None:
        """Mean accuracy of the teachers, accuracy of their vote, and area under the curve of the shares of votes.

        None where nothing was evaluated.

        Args:
            processes: Those of the run, which have different batches.
        """
        gathered = [own for given in processes.gather(list(self._of_batch.values())) for own in given]
        if not gathered:
            return None
        counts, labels = (torch.cat([own[place] for own in gathered]) for place in (0, 2))
        hits = torch.stack([own[1] for own in gathered]).sum(dim=0)
        area = AreaUnderCurve(self.num_classes)
        area.add(counts, labels)
        vote = int((counts.argmax(dim=1) == labels).sum()) / len(labels)
        return float(hits.double().mean()) / len(labels), vote, float(area.compute())
