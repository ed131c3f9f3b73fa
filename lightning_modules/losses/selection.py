"""Choosing a few images to query: those that stand for many, or of which a classifier is sure."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_quotas(held: Tensor, *, count: int) -> Tensor:
    """How many samples of each class to add, so that classes come as close to one another as they can.

    Args:
        held: Samples per class so far, (c,), int64. Ties go to the class of lowest number.
        count: Samples to add in all.

    Returns:
        (c,), int64, of sum `count`.
    """
    quotas = torch.zeros_like(held)
    for _ in range(count):
        quotas[int((held + quotas).argmin())] += 1
    return quotas


def confident_samples(probabilities: Tensor, *, quotas: Tensor) -> Tensor:
    """For each class the samples that a classifier is surest to be of it, each chosen once.

    Classes take turns, each with its best sample that is left, so that none takes what another is surer of by more than
    one turn. A class that the classifier never predicts has its quota filled by what comes nearest.

    Args:
        probabilities: (M, c).
        quotas: Samples per class, (c,), int64, of sum M at most.

    Returns:
        Distinct indices, int64, on the CPU, of as many as the quotas' sum.
    """
    count = int(quotas.sum())
    # Stable: equal probabilities, of a student that has learnt nothing, leave the samples in their order.
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


def spread_samples(codes: Tensor, *, count: int, draw: torch.Generator, rounds: int = 10) -> Tensor:
    """Samples nearest to the centres of k-means with k = `count`.

    Args:
        codes: (M, F), finite.
        count: from 1 to M.
        draw: source of the first centres, which are distinct samples.
        rounds: of Lloyd's algorithm.

    Returns:
        Distinct indices (count,), int64, on the CPU.
    """
    codes = codes.detach().float().cpu()
    centres = codes[torch.randperm(len(codes), generator=draw)[:count]].clone()
    for _ in range(rounds):
        nearest = torch.cdist(codes, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, codes)
        sizes = torch.bincount(nearest, minlength=count)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
    distances = torch.cdist(centres, codes)
    chosen: list[int] = []
    taken = torch.zeros(len(codes), dtype=torch.bool)
    for row in distances:
        best = int(row.masked_fill(taken, torch.inf).argmin())
        taken[best] = True
        chosen.append(best)
    return torch.tensor(chosen)
