"""An overfitted control model, on which every attack must succeed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from privacy.attacks.answers import Records


def overfitted(records: Records, *, num_classes: int, hidden: int = 256, steps: int = 100) -> nn.Module:
    """Overfit a two-layer dense network without privacy: images (N, C, H, W) to logits (N, c), in eval mode.

    Args:
        records: About a thousand; more take longer and are memorised less well.
        num_classes: c.
        hidden: Width of the hidden layer.
        steps: Steps of Adam, on all records at once.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = records.images[0].numel()
        network = nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(network(records.images), records.labels).backward()
            optimizer.step()
    return network.eval()
