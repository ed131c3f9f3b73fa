"""DP-SGD's noise: of the stated scale, added before anything is rounded, and drawn once for several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.dp_teachers import teacher_by_dp_sgd
from support.seeded import Seeded, p_value
from support.threads import in_threads

from lightning_modules.teachers.exact_noise import noisy_means
from privacy import compose
from privacy.events.gaussian import SampledDiscreteGaussian
from privacy.processes import ALONE, Processes

C, SIGMA, BATCH = 0.3, 4.0, 16


def noisy(
    value: float,
    *,
    count: int,
    std: float,
    batch_size: int = 1,
    lattice: float | None = None,
    seed: int = 0,
    processes: Processes = ALONE,
) -> torch.Tensor:
    """The gradient of a step whose sum is `value` in each of `count` coordinates, as a float32 weight gets it."""
    exact = torch.float64 if lattice is None else torch.int64
    total = torch.full((count,), value if lattice is None else round(value / lattice)).to(exact)
    (mean,) = noisy_means(
        [total], std=std, batch_size=batch_size, source=Seeded(seed=seed), lattice=lattice, processes=processes
    )
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
    # On a lattice there are no such numbers at all.
    assert fine_and_small(0.0, lattice=2.0**-20) == fine_and_small(1.0, lattice=2.0**-20) == 0.0


@pytest.mark.parametrize("lattice", [None, 2.0**-8])
def test_the_noise_has_the_stated_scale(lattice: float | None) -> None:
    right = SIGMA * C
    drawn = noisy(0.0, count=30_000, std=right, batch_size=BATCH, lattice=lattice).numpy() * BATCH
    assert p_value(drawn, right) > 1e-3
    assert max(p_value(drawn, right * 2 / 3), p_value(drawn, right * 3 / 2)) < 1e-20


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
    assert (p_value(drawn, SIGMA * C) > 1e-3) is not broken
    assert not broken or p_value(drawn, SIGMA * C) < 1e-20


@pytest.mark.slow
def test_discrete_noise_end_to_end() -> None:
    teacher = teacher_by_dp_sgd("teacher", target_epsilon=3.0, clipping={"granularity": 1e-3})
    ((event, steps),) = teacher.releases.items()
    assert isinstance(event, SampledDiscreteGaussian) and steps == 6
    assert 2.9 < compose(teacher.releases, 1e-5).epsilon <= 3.0
    guarantee = teacher.guarantee()
    assert "discrete Gaussian noise" in guarantee.mechanism and any("no low bits" in s for s in guarantee.assumptions)
    assert guarantee.relation == "add-or-remove of one training record"
    # Its noise is larger: RDP alone is known for it.
    plain = teacher_by_dp_sgd("plain", target_epsilon=3.0)
    assert teacher.noise_multiplier is not None and plain.noise_multiplier is not None
    assert plain.noise_multiplier < teacher.noise_multiplier < 1.6 * plain.noise_multiplier
