"""Calibrated settings never exceed their target, and one step more would."""

from __future__ import annotations

import math
from typing import cast

import pytest

from privacy import (
    Gaussian,
    GaussianVotes,
    LaplaceVotes,
    RandomizedResponse,
    Release,
    SampledGaussian,
    Unbounded,
    calibrate_candidates,
    calibrate_count,
    calibrate_dpdfd_noise,
    calibrate_dpdfd_steps,
    calibrate_noise,
    calibrate_queries,
    calibrate_responses,
    compose,
    gaussian_epsilon,
    max_count,
    output_gradient_mu,
    published_dgd_epsilon,
    published_dpdfd_epsilon,
    randomized_response_epsilon,
)
from privacy.accounting.calibration import NO_LIMIT, VoteNoise

DELTA = 1e-5


@pytest.mark.parametrize("accounting", ["record", "published"])
@pytest.mark.parametrize("target", [1e-3, 0.0456, 1.0, 10.0, 1e4])
def test_noise_is_the_least_that_fits(accounting: str, target: float) -> None:
    found = calibrate_dpdfd_noise(target, steps=200, delta=DELTA, accounting=accounting)  # type: ignore[arg-type]

    def spent(noise: float) -> float:
        if accounting == "published":
            return published_dpdfd_epsilon(1e-3, 10, 256, 200, noise, DELTA)
        return gaussian_epsilon(math.sqrt(200) * output_gradient_mu("per_sample", 256, noise), DELTA)

    assert spent(found.value) == pytest.approx(found.epsilon)
    assert found.epsilon <= target
    assert spent(found.value * (1 - 1e-5)) > target


@pytest.mark.parametrize("release", ["batch_mean", "per_sample", "per_sample_full", "batch_mean_rows", "ensemble"])
def test_steps_are_the_most_that_fit(release: str) -> None:
    found = calibrate_dpdfd_steps(
        50.0,
        noise_scale=100.0,
        delta=DELTA,
        accounting="record",
        release=release,  # type: ignore[arg-type]
    )
    mu = output_gradient_mu(release, 256, 100.0)  # type: ignore[arg-type]
    steps = int(found.value)
    assert found.epsilon <= 50.0
    assert gaussian_epsilon(mu * math.sqrt(steps + 1), DELTA) > 50.0
    assert (steps == 0) == (release == "per_sample")


@pytest.mark.parametrize(("norm_bound", "target", "steps"), [(1e-3, 1.0, 59_681), (5e-3, 10.0, 139_273)])
def test_published_steps(norm_bound: float, target: float, steps: int) -> None:
    found = calibrate_dpdfd_steps(target, noise_scale=100.0, delta=DELTA, accounting="published", norm_bound=norm_bound)
    assert abs(found.value - steps) <= 1
    assert found.epsilon <= target
    assert published_dpdfd_epsilon(norm_bound, 10, 256, int(found.value) + 1, 100.0, DELTA) > target


def test_votes() -> None:
    for noise in ("laplace", "gaussian"):
        kind = cast(VoteNoise, noise)
        found = calibrate_queries(5.0, noise=kind, noise_scale=40.0, delta=DELTA, accounting="record")
        vote = LaplaceVotes(40.0) if noise == "laplace" else GaussianVotes(40.0)
        assert found.epsilon <= 5.0 < compose({vote: int(found.value) + 1}, DELTA).epsilon
    published = calibrate_queries(10.0, noise="laplace", noise_scale=40.0, delta=DELTA, accounting="published")
    n = int(published.value)
    assert published_dgd_epsilon(n, 0.05, DELTA) <= 10.0 < published_dgd_epsilon(n + 1, 0.05, DELTA)
    with pytest.raises(ValueError, match="laplace"):
        calibrate_queries(10.0, noise="gaussian", noise_scale=40.0, delta=DELTA, accounting="published")


def test_answers_and_candidates() -> None:
    found = calibrate_responses(10.0, epsilon=0.1, num_candidates=10, delta=DELTA)
    assert found.epsilon <= 10.0 < randomized_response_epsilon(0.1, 10, int(found.value) + 1, DELTA)
    k = calibrate_candidates(60.0, epsilon=1.0, num_queries=100, num_classes=10, delta=DELTA)
    assert randomized_response_epsilon(1.0, int(k.value), 100, DELTA) <= 60.0
    assert randomized_response_epsilon(1.0, int(k.value) - 1, 100, DELTA) > 60.0
    with pytest.raises(ValueError, match="k = 10"):
        calibrate_candidates(1.0, epsilon=1.0, num_queries=100, num_classes=10, delta=DELTA)


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
    with pytest.raises(ValueError, match="accounting"):
        calibrate_dpdfd_steps(1.0, noise_scale=1.0, delta=DELTA, accounting="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="release must be one of"):
        output_gradient_mu("none", 256, 1.0)  # type: ignore[arg-type]
    assert calibrate_noise(lambda noise: 0.5, 1.0, low=0.1).value == 0.1
    assert calibrate_count(lambda n: 0.0, 1.0, limit=7).value == 7
