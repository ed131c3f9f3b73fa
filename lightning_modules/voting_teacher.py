"""A private ensemble in the place of one private teacher: asked for votes, and for nothing else."""

from __future__ import annotations

from typing import NoReturn

import torch

from lightning_modules.private_ensemble import PrivateEnsemble
from lightning_modules.private_teacher import PrivateTeacher, TeacherError
from privacy.annotators import Annotator
from privacy.pipelines import Bound

__all__ = ["VotingTeacher"]


class VotingTeacher(PrivateTeacher):
    """What `DataFreeDistillation` and the result record want of a teacher, by votes.

    Args:
        ensemble: The teachers.
        bound: What bounds everything that a run releases of them and of whatever else it uses; None for nothing.
    """

    def __init__(self, ensemble: PrivateEnsemble, *, bound: Bound | None) -> None:
        self._ensemble = ensemble
        self.private_data = ensemble.private_data
        self.num_records = ensemble.num_records
        self.path = ensemble.path
        self.bound = bound

    @torch.no_grad()
    def votes(self, images: torch.Tensor) -> torch.Tensor:
        """Votes per class, (N, C, H, W) → (N, c), int64. Private until an annotator has released labels of them."""
        return self._ensemble.votes(images.detach().float())

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """The votes as numbers, shape (N, c): their argmax is what most teachers say. As private as they are."""
        return self.votes(images).float()

    def unprotected(self, door: Annotator, *, reason: str) -> NoReturn:
        """Refused.

        Raises:
            TeacherError: Always.
        """
        raise TeacherError("an ensemble is asked for votes alone")
