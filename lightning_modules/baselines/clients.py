"""What a server computes from its clients' models: means of their responses.

The ensemble is the mean of the clients' logits (AVGLOGITS of Lin et al. 2020, and DENSE).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_modules.networks.batchnorm import logits_and_statistics
from lightning_modules.networks.classifiers import logits_and_features


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

    Raises:
        ValueError: A network without such statistics.
    """
    found = [logits_and_statistics(network, images) for network in networks]
    return torch.stack([logits.float() for logits, _ in found]).mean(dim=0), torch.stack(
        [one for _, one in found]
    ).mean()
