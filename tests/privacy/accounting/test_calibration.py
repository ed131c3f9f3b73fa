"""Calibrated settings never exceed their target, and one step more would."""

from __future__ import annotations

import math

import pytest

from privacy import (
    Gaussian,
    GaussianVotes,
    LaplaceVotes,
    RandomizedResponse,
    Release,
    SampledGaussian,
    Unbounded,
    calibrate_count,
    calibrate_noise,
    compose,
    gaussian_epsilon,
    published_dpdfd_epsilon,
)
from privacy.accounting.calibration import NO_LIMIT, max_count
from privacy.mechanisms.gradients import output_gradient_mu

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


@pytest.mark.parametrize(("norm_bound", "target", "steps"), [(1e-3, 1.0, 59_681), (5e-3, 10.0, 139_273)])
def test_steps_are_the_most_that_fit(norm_bound: float, target: float, steps: int) -> None:
    def spent(count: int) -> float:
        return published_dpdfd_epsilon(norm_bound, 10, 256, count, 100.0, DELTA)

    found = calibrate_count(spent, target)
    assert abs(found.value - steps) <= 1
    assert found.epsilon == spent(int(found.value)) <= target < spent(int(found.value) + 1)


@pytest.mark.parametrize(
    ("release", "already"),
    [
        (Gaussian(0.02), {}),
        (Gaussian(0.02), {Gaussian(0.1): 3}),
        (Gaussian(1e-4), {GaussianVotes(400.0): 10}),
        (GaussianVotes(40.0), {}),
        (RandomizedResponse(0.05, 10), {}),
        (RandomizedResponse(0.05, 10), {RandomizedResponse(0.05, 10): 5, Gaussian(0.1): 1}),
        (LaplaceVotes(100.0), {Gaussian(0.1): 1}),
        (SampledGaussian(2.0, 0.01), {}),
    ],
    ids=repr,
)
def test_max_count_is_the_last_that_fits(release: Release, already: dict[Release, int]) -> None:
    count = max_count(release, 1.0, DELTA, already)

    def spent(n: int) -> float:
        return compose({**already, release: already.get(release, 0) + n}, DELTA).epsilon

    assert count > 0
    assert spent(count) <= 1.0 < spent(count + 1)


def test_max_count_at_its_ends() -> None:
    assert max_count(Gaussian(0.02), 1.0, DELTA) == 179
    assert max_count(Gaussian(5.12), 1.0, DELTA) == 0
    assert max_count(Unbounded("x"), 1.0, DELTA) == 0
    assert max_count(Gaussian(0.02), 1.0, DELTA, {Unbounded("x"): 1}) == 0
    assert max_count(Gaussian(0.02), 1.0, DELTA, {Gaussian(1.0): 1}) == 0
    assert max_count(Gaussian(0.0), 1.0, DELTA) == NO_LIMIT
    assert max_count(RandomizedResponse(0.0, 3), 1.0, DELTA) == NO_LIMIT
    assert max_count(Gaussian(0.02), 0.0, DELTA) == 0
    assert max_count(Gaussian(1e-7), 1.0, DELTA) > 10**12


def test_out_of_reach_says_so() -> None:
    with pytest.raises(ValueError, match="target_epsilon must be at least"):
        calibrate_noise(lambda noise: 2.0, 1.0)
    with pytest.raises(ValueError, match="target_epsilon must be at least"):
        calibrate_count(lambda n: 2.0, 1.0)
    with pytest.raises(ValueError, match="release must be one of"):
        output_gradient_mu("none", 256, 1.0)  # type: ignore[arg-type]
    assert calibrate_noise(lambda noise: 0.5, 1.0, low=0.1).value == 0.1
    assert calibrate_count(lambda n: 0.0, 1.0, limit=7).value == 7
