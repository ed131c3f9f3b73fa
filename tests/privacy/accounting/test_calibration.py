"""Calibrated settings never exceed their target, and one step more would."""

from __future__ import annotations

import math

import pytest

from lightning_modules.teachers.dp_sgd_steps import PlannedSteps
from privacy import calibrate_count, calibrate_noise, compose, gaussian_epsilon, published_dpdfd_epsilon
from privacy.mechanisms.noisy_gradients import output_gradient_mu

DELTA = 1e-5


@pytest.mark.parametrize("accounting", ["record", "published"])
@pytest.mark.parametrize("target", [1e-3, 0.0456, 1.0, 10.0, 1e4])
def test_noise_is_the_least_that_fits(accounting: str, target: float) -> None:
    def spent(noise: float) -> float:
        if accounting == "published":
            return published_dpdfd_epsilon(1e-3, 10, 256, 200, noise, DELTA)
        return gaussian_epsilon(math.sqrt(200) * output_gradient_mu("per_sample", 256, noise), DELTA)

    found = calibrate_noise(spent, target)
    assert spent(found.value) == found.epsilon
    assert found.epsilon <= target
    assert spent(found.value * (1 - 1e-5)) > target


@pytest.mark.parametrize(("norm_bound", "target", "steps"), [(1e-3, 1.0, 59_680), (5e-3, 10.0, 139_273)])
def test_steps_are_the_most_that_fit(norm_bound: float, target: float, steps: int) -> None:
    def spent(count: int) -> float:
        return published_dpdfd_epsilon(norm_bound, 10, 256, count, 100.0, DELTA)

    found = calibrate_count(spent, target)
    assert found.value == steps
    assert found.epsilon == spent(int(found.value)) <= target < spent(int(found.value) + 1)


def test_out_of_reach_says_so() -> None:
    with pytest.raises(ValueError, match="target_epsilon must be at least"):
        calibrate_noise(lambda noise: 2.0, 1.0)
    with pytest.raises(ValueError, match="target_epsilon must be at least"):
        calibrate_count(lambda n: 2.0, 1.0)
    with pytest.raises(ValueError, match="release must be one of"):
        output_gradient_mu("none", 256, 1.0)  # type: ignore[arg-type]
    assert calibrate_noise(lambda noise: 0.5, 1.0, low=0.1).value == 0.1
    assert calibrate_count(lambda n: 0.0, 1.0, limit=7).value == 7


def test_a_large_target_of_dp_sgd_is_met() -> None:
    """A floor of the noise at 0.2 made a tenth of it."""
    steps = PlannedSteps(delta=DELTA, target_epsilon=2000.0)
    noise = steps.calibrated(rate=0.05, steps=100)
    spent = [compose({steps.step(each, 0.05): 100}, DELTA).epsilon for each in (noise, 0.2)]
    assert spent == [pytest.approx(2000, rel=1e-4), pytest.approx(175.467, rel=1e-4)]
