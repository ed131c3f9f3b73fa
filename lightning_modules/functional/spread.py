"""Choosing a few images that stand for many, by public codes alone: what to query where responses are costly."""

from __future__ import annotations

import torch
from torch import Tensor

from privacy.deprecation import renamed_names


def spread_samples(codes: Tensor, *, count: int, draw: torch.Generator, rounds: int = 10) -> Tensor:
    """Samples nearest to the centres of k-means with k = `count`.

    Args:
        codes: (M, F), finite.
        count: from 1 to M.
        draw: source of the first centres, which are distinct samples.
        rounds: of Lloyd's algorithm.

    Returns:
        Distinct indices (count,), int64, on the CPU.

    Raises:
        ValueError: `count` is out of range.
    """
    if not 1 <= count <= len(codes):
        raise ValueError(f"count must lie between 1 and the number of rows {len(codes)}, got {count}")
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


__getattr__ = renamed_names(__name__, {"spread_rows": "spread_samples"})
