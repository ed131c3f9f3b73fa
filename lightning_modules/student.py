"""The student of a method and its training."""

from __future__ import annotations

from dataclasses import dataclass

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn

from lightning_modules.images.replay import Replay
from lightning_modules.networks import NetworkCallable, SmallCNN, build_network
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_number


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Settings of the student and its training.

    Attributes:
        network: Builds the student.
        balance: Exponent b of the weight n_y^-b that a sample of class y has in the loss, where n_y samples of the
            batch (of this process's share) have targets of that class: 0 weighs all samples alike, 1 all classes.
            Otherwise classes that a prior seldom draws are learnt late. It costs no privacy. Not for noisy labels: rare
            ones are most often wrong, and would have the largest weight.
        replay: Steps on earlier images and releases, at no privacy cost; off unless it has a capacity.
        optimizer: Builds the optimizer; null is Adam at 1e-3.
        lr_scheduler: Builds the schedule, stepped once per student step; null is none.
    """

    network: NetworkCallable = SmallCNN
    balance: float = 0.0
    replay: Replay = Replay()
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None

    def __post_init__(self) -> None:
        # A script's checkpoint holds plain values.
        object.__setattr__(self, "replay", settings_of(Replay, self.replay, name="student.replay"))
        check_number("student.balance", self.balance, least=0, most=1)

    def build(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
        """Build the student, for images (C, H, W).

        Raises:
            ValueError: It does not return c finite logits for such images.
        """
        return build_network(
            self.network, num_classes=num_classes, image_shape=image_shape, name="model.student.network"
        )
