"""The generator's loss of DPDFD and DPSD: weighted terms of the discriminator's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.losses.functional import activation, class_balance, one_hot_loss
from lightning_modules.networks.classifiers import logits_and_features
from lightning_modules.setting_checks import check_choice, check_number


@dataclass(frozen=True, kw_only=True)
class GeneratorLoss:
    """Terms of the generator's loss (DPDFD Eq. 5, DPSD Eq. 8, LabelDP and DGD Eq. 2); a weight of 0 drops a term.

    Larger activations mean more realistic images, so their term is subtracted.

    Attributes:
        one_hot_weight: Weight of the cross-entropy to the discriminator's own decision.
        balance_weight: α, weight of the negative entropy of the mean prediction.
        activation_weight: β, weight of the size of the features.
        activation_norm: `l1` for the mean absolute feature, or `l2` for the mean norm of an image's features.
        student_loss_weight: Weight of the student's loss on the released targets (1 as printed).
    """

    setting: ClassVar[str] = "generator_loss"

    one_hot_weight: float = 1.0
    balance_weight: float = 5.0
    activation_weight: float = 0.1
    activation_norm: Literal["l1", "l2"] = "l1"
    student_loss_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("one_hot_weight", "balance_weight", "activation_weight", "student_loss_weight"):
            check_number(f"{self.setting}.{name}", getattr(self, name))
        check_choice(f"{self.setting}.activation_norm", self.activation_norm, ("l1", "l2"))

    def __call__(self, discriminator: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sum of the terms on images (n, C, H, W), and their logits (n, c), both with their graph.

        The discriminator is a classifier; see `logits_and_features`.
        """
        if self.activation_weight:
            logits, features = logits_and_features(discriminator, images)
        else:
            logits = features = discriminator(images)
        return self.of(logits.float(), features.float()), logits.float()

    def against(self, discriminator: nn.Module, student: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        """The discriminator's terms on images (n, C, H, W), and the student's loss on fixed targets (n, c), if any."""
        loss, logits = self(discriminator, images)
        if self.student_loss_weight and len(targets):
            outputs = logits if discriminator is student else student(images).float()
            loss = loss + self.student_loss_weight * functional.cross_entropy(outputs, targets.detach())
        return loss

    def of(self, logits: Tensor, features: Tensor) -> Tensor:
        """The weighted sum of the terms of logits (n, c) and features (n, F)."""
        loss = logits.new_zeros(())
        if self.one_hot_weight:
            loss = loss + self.one_hot_weight * one_hot_loss(logits)
        if self.balance_weight:
            loss = loss + self.balance_weight * class_balance(logits)
        if self.activation_weight:
            loss = loss - self.activation_weight * activation(features, norm=self.activation_norm)
        return loss
