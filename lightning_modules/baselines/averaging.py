"""Weighted means of networks (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["weighted_mean"]


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Mean of weights and buffers, BatchNorm's running statistics among them.

    Args:
        states: As of `state_dict`, of one architecture.
        weights: One for each, not negative; they need not sum to 1.

    Returns:
        A new state in the types of the first; counts (such as `num_batches_tracked`) are rounded.

    Raises:
        ValueError: Other numbers of states and weights, weights that say nothing, or states of several architectures.
    """
    if not states or len(states) != len(weights):
        raise ValueError(f"states and weights must be of one number, 1 or more, got {len(states)} and {len(weights)}")
    total = float(sum(weights))
    if min(weights) < 0 or not 0 < total < float("inf"):
        raise ValueError(f"weights must not be negative, and their sum must be positive, got {list(weights)}")
    shapes = [{name: value.shape for name, value in state.items()} for state in states]
    if any(other != shapes[0] for other in shapes):
        raise ValueError("states must be of one architecture: their names or shapes differ")
    mean: dict[str, Tensor] = {}
    for name, first in states[0].items():
        stacked = torch.stack([state[name].detach().double() for state in states])
        shares = torch.tensor([weight / total for weight in weights], dtype=torch.float64, device=stacked.device)
        value = torch.einsum("k,k...->...", shares, stacked)
        mean[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return mean
