"""Methods and data sets that tests configure by class path: mutants, and data of another kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from datamodules import Digits
from datamodules.base import Part
from datamodules.records import ImageDataset
from lightning_modules import DPDFD
from lightning_modules.base import DataFreeDistillation
from lightning_modules.networks import logits_and_features
from privacy.mechanisms import NoisyGradients, Shape


def two_teachers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]


def generator_gap(fitted: Callable[[nn.Module], DataFreeDistillation]) -> float:
    """Largest difference between the generator's gradients after a fit, under two teachers and one released target."""
    found = []
    for teacher in two_teachers():
        parameters = list(fitted(teacher).optimized_groups()["generator"].parameters)
        found.append([parameter.grad.clone() for parameter in parameters if parameter.grad is not None])
    first, second = found
    assert all(float(gradient.abs().max()) > 0 for gradient in (first[0], first[-1]))
    return max(float((one - other).abs().max()) for one, other in zip(first, second, strict=True))


class LockedDigits(Digits):
    """Digits whose private part cannot be read."""

    def read(self, part: Part) -> ImageDataset:
        if part == "train":
            raise PermissionError("a private image was read")
        return super().read(part)


class AskingDigits(Digits):
    """Asks for the area under the ROC curve, too."""

    metrics = ("accuracy", "auroc")


class LeakyDPDFD(DPDFD):
    """Holds its teacher as a submodule."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.copy_of_teacher = self.teacher._network_of(0)


class PeekingDPDFD(DPDFD):
    """Looks at private images while it distils."""

    def training_step(self, batch: int, batch_idx: int) -> None:
        dataset: Any = self.trainer.datamodule.dataset
        dataset.setup("fit")
        super().training_step(batch, batch_idx)


class CarelessDPDFD(DPDFD):
    """Overrides the hooks of tests and of the first step without calling its base's."""

    def on_train_start(self) -> None:
        pass

    def on_test_start(self) -> None:
        pass

    on_validation_start = on_predict_start = on_test_start


class UndetachedDPDFD(DPDFD):
    """Uses the released targets' values in the generator's loss, with the teacher still in their graph."""

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits, _ = logits_and_features(self.student, images)
        answer = self.teacher._network_of(0)(images).softmax(dim=1)
        return F.cross_entropy(logits, targets.detach() + answer - answer.detach())


class FixedGradients(NoisyGradients):
    """Always releases the same rows whatever the teacher says."""

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        (gradients,) = tensors
        return (
            self.norm_bound * F.one_hot(torch.arange(len(gradients)) % gradients.shape[1], gradients.shape[1]).float()
        )


class MoodyTeacher(nn.Module):
    """Usable on blank images, NaN on every other."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1)
        logits: torch.Tensor = self.head(flat)
        return torch.where(flat.abs().sum(dim=1, keepdim=True) > 0, torch.full_like(logits, torch.nan), logits)
