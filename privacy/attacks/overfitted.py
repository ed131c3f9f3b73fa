"""A model that has learnt its records by heart: what every attack must succeed on."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from privacy.attacks.answers import Records


def overfitted(records: Records, *, num_classes: int, hidden: int = 256, steps: int = 100) -> nn.Module:
    """Trains a dense network of two layers without any protection until it knows each of its records.

    Args:
        records: A thousand or so; more take longer, and are learnt less well.
        num_classes: c. The network comes in eval mode, and maps (N, C, H, W) to logits (N, c).
        hidden: Width.
        steps: Of Adam, on all records at once.
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
