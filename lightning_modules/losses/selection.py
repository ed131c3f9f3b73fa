"""Selection of a few images to query: the most confident ones, balanced by class."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_quotas(held: Tensor, *, count: int) -> Tensor:
    """Numbers of samples to add to each class, so that class counts become as equal as possible.

    The result, with sum `count`, and `held`, the current samples per class, are (c,) int64. Ties go to the lowest
    class.
    """
    quotas = torch.zeros_like(held)
    for _ in range(count):
        quotas[int((held + quotas).argmin())] += 1
    return quotas


def confident_samples(probabilities: Tensor, *, quotas: Tensor) -> Tensor:
    """Distinct indices, int64 on the CPU, of the samples with the largest probability for each class.

    Classes take turns, each choosing its best remaining sample, also if the classifier never predicts the class.
    Probabilities are (M, c), and quotas are samples per class, (c,) int64; there are as many indices as their sum,
    which is at most M.
    """
    count = int(quotas.sum())
    # Stable, so that equal probabilities, as from an untrained student, keep the samples in order.
    ranks = probabilities.detach().float().cpu().argsort(dim=0, descending=True, stable=True)
    taken, left = torch.zeros(len(ranks), dtype=torch.bool), quotas.cpu().clone()
    positions = [0] * len(left)
    chosen: list[int] = []
    while len(chosen) < count:
        for label in torch.nonzero(left)[:, 0].tolist():
            while taken[ranks[positions[label], label]]:
                positions[label] += 1
            best = int(ranks[positions[label], label])
            taken[best] = True
            chosen.append(best)
            left[label] -= 1
    return torch.tensor(chosen, dtype=torch.int64)
