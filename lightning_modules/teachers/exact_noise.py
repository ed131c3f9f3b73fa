"""DP-SGD's noise: added in float64 to sums of clipped gradients, not rounded before.

If noise is rounded to float32 before it is added, the low bits of the sum tell whether a record took part (an event of
probability 3.3 % without it, 0 with it). So the result is rounded to the weights' precision after adding noise and
dividing by the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privacy.mechanisms.noise import NoiseSource
from privacy.processes import Processes, on_rank_zero


def noisy_means(
    sums: Sequence[Tensor],
    *,
    std: float,
    batch_size: int,
    source: NoiseSource,
    processes: Processes,
) -> list[Tensor]:
    """Adds noise to the sums over a batch and divides by its expected size, in float64.

    Process 0 adds up the sums of all processes and draws the noise once, since the sum is one release of one batch:
    shares drawn by each process would have to be assumed independent.

    Args:
        sums: This process's sums, on the CPU; see `ClippedNetwork.sums`.
        std: σC, the noise's standard deviation.
        batch_size: Expected size of a batch over all processes.
        source: Source of the noise.
        processes: Processes of the run, each with its own records.
    """
    if processes.size > 1:
        sums = [torch.stack(parts).sum(dim=0) for parts in zip(*processes.gather(list(sums)), strict=True)]
    means: list[Tensor] = []
    with on_rank_zero(processes) as first:
        if first:
            means = [(total + source.gaussian(tuple(total.shape)) * std) / batch_size for total in sums]
    noisy: list[Tensor] = processes.broadcast(means)
    return noisy
