"""What a server computes from its clients' models: the weighted mean of their weights, and means of their responses.

The ensemble is the mean of the clients' logits (AVGLOGITS of Lin et al. 2020, and DENSE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lightning_modules.networks.batchnorm import logits_and_statistics
from lightning_modules.networks.classifiers import logits_and_features

__all__ = ["mean_logits", "mean_logits_and_features", "mean_logits_and_statistics", "weighted_mean"]


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Mean of weights and buffers (McMahan et al. 2017), BatchNorm's running statistics among them.

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


def mean_logits(networks: Sequence[nn.Module], images: Tensor) -> Tensor:
    """Mean logits, (N, C, H, W) → (N, c), float32, with their graph."""
    return torch.stack([network(images).float() for network in networks]).mean(dim=0)


def mean_logits_and_features(networks: Sequence[nn.Module], images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean logits (N, c), and the features of all networks side by side (N, sum of F), with their graph."""
    logits, features = zip(*(logits_and_features(network, images) for network in networks), strict=True)
    return torch.stack(logits).float().mean(dim=0), torch.cat(features, dim=1).float()


def mean_logits_and_statistics(networks: Sequence[nn.Module], images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean logits (N, c), and the mean over networks of the distance from their BatchNorm statistics (DENSE's L_BN).

    Each network itself is called, with hooks on its own layers: hooks on an object that only stands for the networks
    never fire, and the term is then 0 for every image (see `logits_and_statistics`, which refuses that).

    Args:
        networks: Classifiers with BatchNorm, in evaluation mode.
        images: (N, C, H, W).

    Raises:
        ValueError: A network without such statistics.
    """
    found = [logits_and_statistics(network, images) for network in networks]
    return torch.stack([logits.float() for logits, _ in found]).mean(dim=0), torch.stack(
        [one for _, one in found]
    ).mean()
