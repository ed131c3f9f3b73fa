"""A network whose weights are an exponential moving average of another's, which is in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

__all__ = ["moving_average"]


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
