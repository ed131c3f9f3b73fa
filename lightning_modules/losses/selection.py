"""Selection of a few images to query: those a classifier is sure of, balanced by class."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_quotas(held: Tensor, *, count: int) -> Tensor:
    """Numbers of samples to add to each class, so that class counts become as equal as possible.

    The result, of sum `count`, and `held`, the samples per class so far, are (c,) int64. Ties go to the class of
    lowest number.
    """
    quotas = torch.zeros_like(held)
    for _ in range(count):
        quotas[int((held + quotas).argmin())] += 1
    return quotas


def confident_samples(probabilities: Tensor, *, quotas: Tensor) -> Tensor:
    """Distinct indices, int64 on the CPU, of the samples that a classifier most surely assigns to each class.

    Classes take turns, each with its best sample that is left, so that none takes what another is surer of by more than
    one turn. A class that the classifier never predicts has its quota filled by what comes nearest. Probabilities are
    (M, c), and quotas samples per class, (c,) int64; there are as many indices as their sum, which is M at most.
    """
    count = int(quotas.sum())
    # Stable: equal probabilities, as from an untrained student, keep the samples in order.
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
