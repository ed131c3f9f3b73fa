"""The student of a method and its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_modules.images.replay import Replay
from lightning_modules.networks import Network, build_network
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_number

__all__ = ["StudentConfig", "moving_average"]


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """The student and its training; a string stands for its `network`.

    Attributes:
        network: Its name, or name and arguments; see `Network`. Default: `SmallCNN`.
        ema: Decay of an exponential moving average of its weights and statistics, such as 0.99, which is evaluated and
            published in its place; null is none. It costs nothing.
        balance: Samples have a weight of n_y to the power of minus this in the loss, where n_y of the batch (of this
            process's share of it) have targets of the same class y: 0 takes them as they come, 1 every class for as
            much. Classes that a prior's images seldom have are else learnt late. It costs nothing.
        replay: Steps on earlier images and what was released about them, which cost nothing; off unless it has a
            capacity.
        optimizer: Builds its optimizer; null is Adam at 1e-3.
        lr_scheduler: Builds its schedule, stepped once for each of its steps; null is none.
    """

    network: Network | str | None = None
    ema: float | None = None
    balance: float = 0.0
    replay: Replay = Replay()
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None

    def __post_init__(self) -> None:
        # In a checkpoint of a script it is plain values.
        object.__setattr__(self, "replay", settings_of(Replay, self.replay, name="student.replay"))
        check_number("student.ema", self.ema, least=0, below=1, null="no average")
        check_number("student.balance", self.balance, least=0, most=1)

    def build(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
        """The student, for images (C, H, W).

        Raises:
            ValueError: It does not give c finite logits for such images.
        """
        return build_network(
            self.network or "SmallCNN", num_classes=num_classes, image_shape=image_shape, name="model.student.network"
        )


def moving_average(network: nn.Module, *, decay: float) -> AveragedModel:
    """An average that begins as a copy of `network`, and takes it in at each `update_parameters(network)`.

    Weights w̄ ← d·w̄ + (1 - d)·w with d = min(decay, (1 + n)/(10 + n)) after n updates, so that the random weights of the
    beginning are soon forgotten (as in TensorFlow's `ExponentialMovingAverage` with `num_updates`). Buffers are
    averaged alike: BatchNorm's statistics then belong to about the weights that are averaged. Whole numbers among them,
    such as counts and digests, have no average: they are the network's own.

    Lightning's `EMAWeightAveraging` does the same for a whole module, which it copies: here that holds a teacher's
    ledger, and a generator that begins anew.

    Args:
        network: What is averaged.
        decay: The largest d, at least 0 and below 1.
    """

    def step(averages: Any, weights: Any, updates: Tensor | int) -> None:
        if not (averages[0].is_floating_point() or averages[0].is_complex()):  # a group is of one type
            torch._foreach_copy_(averages, weights)
            return
        done = int(updates)
        get_ema_multi_avg_fn(min(decay, (1 + done) / (10 + done)))(averages, weights, done)

    average = AveragedModel(network, multi_avg_fn=step, use_buffers=True)
    average.requires_grad_(False)
    return average
