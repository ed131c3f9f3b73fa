"""DP-SGD's noise: of the stated scale, added before anything is rounded, and drawn once for several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.seeded import Seeded, p_value
from support.threads import in_threads

from lightning_modules.teachers.dp_sgd_steps import noisy_means
from privacy.processes import ALONE, Processes

C, SIGMA, BATCH = 0.3, 4.0, 16


def noisy(
    value: float,
    *,
    count: int,
    std: float,
    batch_size: int = 1,
    seed: int = 0,
    processes: Processes = ALONE,
) -> torch.Tensor:
    """The gradient of a step whose sum is `value` in each of `count` coordinates, as a float32 weight gets it."""
    total = torch.full((count,), value, dtype=torch.float64)
    (mean,) = noisy_means([total], std=std, batch_size=batch_size, source=Seeded(seed=seed), processes=processes)
    return mean.float().double()


def rounded_first(value: float, *, count: int, std: float) -> torch.Tensor:
    """Negative control: noise is rounded to float32 before it is added to a float32 sum, as it once was."""
    return (torch.full((count,), value) + (Seeded().gaussian((count,)) * std).float()).double()


def fine_and_small(value: float, kind: Callable[..., torch.Tensor] = noisy, **settings: Any) -> float:
    """How often a coordinate is small and yet no multiple of 2^-26, for a sum of `value` and noise of deviation 1."""
    found = kind(value, count=20_000, std=1.0, **settings)
    return float(((found.abs() < 0.1) & (found * 2.0**26 != (found * 2.0**26).round())).double().mean())


def test_low_bits_do_not_tell_whether_a_record_took_part() -> None:
    """Noise that was rounded first leaves only coarse numbers beside a record of 1: fine ones tell of its absence."""
    assert fine_and_small(0.0, rounded_first) > 0.03 and fine_and_small(1.0, rounded_first) == 0.0
    assert fine_and_small(0.0) > 0.03 and fine_and_small(1.0) > 0.03


@pytest.mark.parametrize("broken", [False, True])
def test_the_noise_of_two_processes_is_that_of_one(broken: bool) -> None:
    def act(processes: Processes) -> torch.Tensor:
        given: dict[str, Any] = {"count": 30_000, "std": SIGMA * C, "batch_size": BATCH, "seed": processes.rank}
        if broken:  # every process adds the whole noise to its own sum, and the sums are then added up
            return torch.stack(processes.gather(noisy(1.0 + processes.rank, **given))).sum(dim=0)
        return noisy(1.0 + processes.rank, processes=processes, **given)

    found = in_threads(act)
    assert torch.equal(found[0], found[1])
    drawn = (found[0] * BATCH - 3.0).numpy()  # the sum of both sums
    assert p_value(drawn, SIGMA * C) < 1e-20 if broken else p_value(drawn, SIGMA * C) > 1e-3
