"""DP-SGD's noise: of the stated scale, and added before anything is rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus.optimizers.optimizer import _check_processed_flag
from opacus.schedulers import ExponentialNoise
from support.dp_teachers import teacher_by_dp_sgd
from support.seeded import Seeded, p_value
from torch import nn

from lightning_modules.teachers.exact_noise import ExactNoise
from privacy import compose
from privacy.events.gaussian import SampledDiscreteGaussian

C = 0.3


def noisy(
    value: float, *, count: int, sigma: float, batch: int = 1, lattice: float | None = None, kind: Any = ExactNoise
) -> torch.Tensor:
    """The gradient of a step whose sum is `value` in each of `count` coordinates."""
    weight = nn.Parameter(torch.zeros(count))
    made = kind(torch.optim.SGD([weight]), noise_multiplier=sigma, max_grad_norm=C, expected_batch_size=batch)
    made.source, made.lattice = Seeded(), lattice
    exact = torch.float64 if lattice is None else torch.int64
    made.sums = [torch.full((count,), value if lattice is None else round(value / lattice)).to(exact)]
    made.accumulate()
    made.add_noise()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    # Without noise, it would be pickled with the network; the control leaves it.
    assert (weight.summed_grad is None) == (kind is ExactNoise) and not made.sums
    made.sums = [torch.zeros(count)]
    with pytest.raises(ValueError, match="sums must be"):
        made.accumulate()
    return weight.grad.double()


class _RoundedNoise(ExactNoise):
    """Negative control: noise is rounded to float32 before it is added to a float32 sum, as it once was."""

    def add_noise(self) -> None:
        for weight in self.params:
            _check_processed_flag(weight.summed_grad)
            total = weight.summed_grad.float()
            noise = self.source.gaussian(tuple(total.shape)) * (self.noise_multiplier * self.max_grad_norm)
            weight.grad = total + noise.float()


def fine_and_small(value: float, **settings: Any) -> float:
    """How often a coordinate is small and yet no multiple of 2^-26, for a sum of `value` and noise of deviation 1."""
    found = noisy(value, count=20_000, sigma=1 / C, **settings)
    return float(((found.abs() < 0.1) & (found * 2.0**26 != (found * 2.0**26).round())).double().mean())


def test_low_bits_do_not_tell_whether_a_record_took_part() -> None:
    """Noise that was rounded first leaves only coarse numbers beside a record of 1: fine ones tell of its absence."""
    assert fine_and_small(0.0, kind=_RoundedNoise) > 0.03 and fine_and_small(1.0, kind=_RoundedNoise) == 0.0
    assert fine_and_small(0.0) > 0.03 and fine_and_small(1.0) > 0.03
    # On a lattice there are no such numbers at all.
    assert fine_and_small(0.0, lattice=2.0**-20) == fine_and_small(1.0, lattice=2.0**-20) == 0.0


@pytest.mark.parametrize("lattice", [None, 2.0**-8])
def test_the_noise_has_the_stated_scale(lattice: float | None) -> None:
    sigma, batch = 4.0, 16
    drawn = noisy(0.0, count=30_000, sigma=sigma, batch=batch, lattice=lattice).numpy() * batch
    right = sigma * C
    assert p_value(drawn, right) > 1e-3
    assert max(p_value(drawn, right * 2 / 3), p_value(drawn, right * 3 / 2)) < 1e-20


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


def test_a_schedule_of_noise_or_norm_is_refused_before_a_step() -> None:
    """Opacus's write into the optimizer; what a step is charged would stay."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(2))])
    made = ExactNoise(sgd, noise_multiplier=4.0, max_grad_norm=C, expected_batch_size=1)
    made.sums = [torch.zeros(2, dtype=torch.float64)]
    ExponentialNoise(made, gamma=0.5).step()
    with pytest.raises(ValueError, match=r"charged as, \(4.0, 0.3\), got \(2.0, 0.3\)"):
        made.accumulate()
    # Without the check the step is taken, with half the noise.
    made._charged = (2.0, C)
    made.accumulate()
    assert made.noise_multiplier == 2.0 and not made.sums
