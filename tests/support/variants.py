"""Methods and data sets that tests configure by class path: mutants, and data of another kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from datamodules import Digits
from datamodules.base import Part
from datamodules.records import ImageDataset
from lightning_modules import DPDFD
from privacy.mechanisms import NoisyGradients, Shape


def two_teachers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]


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
