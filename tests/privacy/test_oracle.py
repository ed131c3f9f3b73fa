"""Agreement with dp-accounting, an independent implementation, wherever it is right: `make test-oracle`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from privacy import Gaussian, LaplaceVotes, RandomizedResponse, Release, SampledGaussian, compose

if os.environ.get("ORACLE") != "required":
    # Where it is required, its absence is a failure: a comparison that never takes place must not look like one.
    pytest.importorskip("dp_accounting")
import dp_accounting
from dp_accounting.pld import privacy_loss_distribution as oracle
from support.runs import QUIET

from lightning_modules.cli import main

DELTAS = [1e-8, 1e-5, 1e-3]
DP_SGD = [(0.6, 256 / 60_000, 2344), (1.1, 0.01, 1000), (4.0, 0.5, 100), (0.4, 0.001, 50)]


def agree(ours: float, theirs: float) -> bool:
    """What every comparison of two ε rests on: to a thousandth."""
    return bool(ours == pytest.approx(theirs, rel=1e-3, abs=1e-3))


def from_oracle(distribution: object, count: int, delta: float) -> float:
    return float(distribution.self_compose(count).get_epsilon_for_delta(delta))  # type: ignore[attr-defined]


def sampled_gaussian(sigma: float, rate: float) -> object:
    return oracle.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4)


def gaussian(sigma: float, **more: float) -> object:
    return oracle.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4, **more)


def response(epsilon: float, k: int) -> object:
    """The distribution itself: PLDAccountant ignores ``count`` for this event."""
    noise = k / (math.exp(epsilon) + k - 1)
    # A hair above epsilon, since the oracle rounds losses up to its grid.
    return oracle.from_randomized_response(noise, k, value_discretization_interval=epsilon * 1e-4 * (1 + 1e-12))


def laplace(scale: float) -> object:
    return oracle.from_laplace_mechanism(scale, value_discretization_interval=1e-4)


#: Release, the oracle's distribution, how many of it one release is, and how often it happens.
CASES: list[tuple[Release, object, int, int]] = [
    *((Gaussian(1 / sigma), gaussian(sigma), 1, count) for sigma in (0.7, 3.0, 40.0) for count in (1, 100)),
    *(
        (RandomizedResponse(epsilon, k), response(epsilon, k), 1, count)
        for epsilon, k, count in [(1.0, 10, 1), (1.0, 10, 100), (0.5, 2, 50), (0.1, 3, 100)]
    ),
    *((LaplaceVotes(40.0), laplace(40.0), 2, count) for count in (27, 400, 1000)),
    *((SampledGaussian(sigma, rate), sampled_gaussian(sigma, rate), 1, count) for sigma, rate, count in DP_SGD),
    # L2 = sqrt(2) under ADD_OR_REMOVE_ONE; REPLACE_ONE would double it for distributions only.
    (Gaussian(math.sqrt(2) / 40.0), gaussian(40.0, sensitivity=math.sqrt(2)), 1, 100),
]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("release", "theirs", "times", "count"), CASES, ids=lambda value: repr(value)[:40])
def test_it_agrees(release: Release, theirs: object, times: int, count: int, delta: float) -> None:
    assert agree(compose({release: count}, delta).epsilon, from_oracle(theirs, times * count, delta))


@pytest.mark.parametrize("factor", [0.5, 2 / 3, 3 / 2, 0.99, 1.01])
def test_wrong_noise_is_refused(factor: float) -> None:
    """The negative control of the comparisons."""
    for wrong, theirs in (
        (Gaussian(1 / (3.0 * factor)), from_oracle(gaussian(3.0), 100, 1e-5)),
        (LaplaceVotes(40.0 * factor), from_oracle(laplace(40.0), 200, 1e-5)),
        (SampledGaussian(4.0 * factor, 0.5), from_oracle(sampled_gaussian(4.0, 0.5), 100, 1e-5)),
        (SampledGaussian(4.0, 0.5 * factor), from_oracle(sampled_gaussian(4.0, 0.5), 100, 1e-5)),
        (RandomizedResponse(1 / factor, 10), from_oracle(response(1.0, 10), 100, 1e-5)),
    ):
        assert not agree(compose({wrong: 100}, 1e-5).epsilon, theirs)
    votes = from_oracle(gaussian(40.0, sensitivity=math.sqrt(2)), 100, 1e-5)
    assert not agree(compose({Gaussian(1 / 40.0): 100}, 1e-5).epsilon, votes), "noise as for L2 = 1"


def test_mixtures() -> None:
    grid = 1e-4 * (1 + 1e-12)
    gaussian = oracle.from_gaussian_mechanism(1.0, value_discretization_interval=grid)
    laplace = oracle.from_laplace_mechanism(10.0, value_discretization_interval=grid)
    answers = oracle.from_randomized_response(10 / (math.exp(0.3) + 9), 10, value_discretization_interval=grid)
    theirs = gaussian.compose(laplace.self_compose(20)).compose(answers.self_compose(30))
    counts: dict[Release, int] = {Gaussian(1.0): 1, LaplaceVotes(10.0): 10, RandomizedResponse(0.3, 10): 30}
    for delta in DELTAS:
        assert compose(counts, delta).epsilon == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-3)


def epsilon_of_export(content: Mapping[str, Any]) -> float:
    """ε of a `guarantee.json`, from what docs/use_your_student.md says is in it and dp-accounting alone."""
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    for event, count in content["guarantee"]["releases"]:
        noise = dp_accounting.GaussianDpEvent(1 / event["mu"] if "mu" in event else event["noise_multiplier"])
        sampled = dp_accounting.PoissonSampledDpEvent(event["sample_rate"], noise) if "sample_rate" in event else noise
        accountant.compose(sampled, count)
    return float(accountant.get_epsilon(content["guarantee"]["delta"]))


@pytest.mark.parametrize("run", ["dpsgdteacher_digits", "dpdfd_digits"])
def test_an_exported_guarantee(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if run == "dpsgdteacher_digits":
        main(["fit", "--config", "sweeps/dp_teacher_digits.yaml", "--trainer.max_epochs=1", *QUIET])
    else:
        main(["fit", "--config", "sweeps/teacher_digits.yaml", "--trainer.max_epochs=1", *QUIET])
        small = ["--trainer.max_epochs=1", "--data.steps_per_epoch=2", "--model.mechanism.release=per_sample_full"]
        main(["fit", "--config", "sweeps/dpdfd_digits.yaml", *small, *QUIET])
    main(["export", f"runs/{run}/version_0", "--to", "exported"])
    main(["verify", "exported"])
    content = json.loads(Path("exported/guarantee.json").read_text(encoding="utf-8"))
    assert agree(content["guarantee"]["epsilon"], epsilon_of_export(content))
    for event, _ in content["guarantee"]["releases"]:  # negative control: 1 % more noise, or less
        name = "mu" if "mu" in event else "noise_multiplier"
        event[name] *= 1.01
    assert not agree(content["guarantee"]["epsilon"], epsilon_of_export(content))
