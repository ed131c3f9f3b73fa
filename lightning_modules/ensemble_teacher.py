"""A private ensemble in the place of one private teacher: asked for votes, or for what each of them says."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import nn

from lightning_modules.components.stacked import NetworkStack
from lightning_modules.private_ensemble import PrivateEnsemble
from lightning_modules.private_teacher import PrivateTeacher, TeacherError
from privacy.annotators import Annotator
from privacy.pipelines import Bound

__all__ = ["EnsembleTeacher", "load_ensemble"]


class EnsembleTeacher(PrivateTeacher):
    """What `DataFreeDistillation` and the result record want of a teacher, by many.

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

    @property
    def num_teachers(self) -> int:
        """n."""
        return self._ensemble.num_teachers

    @torch.no_grad()
    def votes(self, images: torch.Tensor) -> torch.Tensor:
        """Votes per class, (N, C, H, W) → (N, c), int64. Private until an annotator has released something of them."""
        return self._ensemble.votes(images.detach().float())

    @torch.no_grad()
    def each(self, images: torch.Tensor) -> torch.Tensor:
        """Every teacher's logits, (N, C, H, W) → (n, N, c), float32. As private as the votes."""
        return self._ensemble.logits(images.detach().float())

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """The votes as numbers, shape (N, c): their argmax is what most teachers say. As private as they are."""
        return self.votes(images).float()

    def unprotected(self, door: Annotator, *, reason: str) -> NoReturn:
        """Refused.

        Raises:
            TeacherError: Always.
        """
        raise TeacherError("an ensemble is asked for answers alone: no use of its teachers themselves is charged here")


def load_ensemble(
    source: str | PrivateTeacher,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    network: Callable[..., nn.Module] | None = None,
    private_data: str | None = None,
) -> PrivateEnsemble:
    """The ensemble that a module's `teacher` names.

    Args:
        source: File of `TeacherEnsemble`, or a wrapped `nn.ModuleList` of a script.
        num_classes: c that the run expects.
        image_shape: (C, H, W) that the run expects.
        network: Builds one teacher where the file does not say.
        private_data: Public name of the private data where the file does not say.

    Raises:
        TeacherError: No ensemble, or one of no use.
    """
    if not isinstance(source, PrivateTeacher):
        return PrivateEnsemble.load(
            source, num_classes=num_classes, image_shape=image_shape, network=network, private_data=private_data
        )
    if not isinstance(source._network, nn.ModuleList):
        raise TeacherError("teacher must be the file of an ensemble, or an nn.ModuleList of networks in a script")
    ensemble = PrivateEnsemble(
        NetworkStack(list(source._network)), num_classes=num_classes, private_data=source.private_data
    )
    ensemble.require_usable(num_classes=num_classes, image_shape=image_shape)
    return ensemble
