"""One contract that every release keeps."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.closed_forms import rdp_compose

from privacy import (
    Gaussian,
    LabelOnly,
    LaplaceVotes,
    OneOf,
    RandomizedResponse,
    Repeated,
    RevealedGaussian,
    SampledGaussian,
    Unbounded,
    compose,
    published,
)
from privacy.events import Release, release_from_dict
from privacy.events.base import _REGISTRY, Relation, Unit
from privacy.ledger import Ledger
from privacy.plan import Charge
from privacy.published import Claim, NoisyVotesClaim, RdpSlope, WholeRun

DELTA = 1e-5
# Each with a noisier neighbour, which must cost less.
PAIRS: list[tuple[Release, Release]] = [
    (Gaussian(0.1), Gaussian(0.09)),
    (RandomizedResponse(1.0, 10), RandomizedResponse(0.9, 10)),
    (RandomizedResponse(1.0, 3), RandomizedResponse(1.0, 4)),
    (LaplaceVotes(40.0), LaplaceVotes(41.0)),
    (SampledGaussian(0.8, 0.01), SampledGaussian(0.85, 0.01)),
    (SampledGaussian(0.8, 0.01), SampledGaussian(0.8, 0.009)),
    (SampledGaussian(2.0, 1.0), SampledGaussian(2.1, 1.0)),
    (RevealedGaussian(1.0, 0.05), RevealedGaussian(0.9, 0.05)),
    (Repeated(RandomizedResponse(1.0, 10), 3), Repeated(RandomizedResponse(1.0, 10), 2)),
    (Repeated(Gaussian(0.1), 4), Gaussian(0.19)),
    (
        OneOf((((SampledGaussian(0.8, 0.01), 3),), ((Gaussian(0.1), 1), (SampledGaussian(0.9, 0.05), 2)))),
        OneOf((((SampledGaussian(0.85, 0.01), 3),), ((Gaussian(0.09), 1), (SampledGaussian(0.95, 0.05), 2)))),
    ),
]
UNBOUNDED = [Unbounded("the generator saw the teacher"), LabelOnly(RevealedGaussian(1.0, 0.05))]
RELEASES = list(dict.fromkeys(release for release, _ in PAIRS))


def epsilon(counts: Mapping[Release, int], delta: float = DELTA) -> float:
    return compose(counts, delta).epsilon


def test_every_kind_is_under_contract() -> None:
    covered = {release.kind for release in RELEASES} | {Unbounded.kind, LabelOnly.kind}
    assert covered == set(_REGISTRY)


@pytest.mark.parametrize(("louder", "quieter"), PAIRS, ids=repr)
def test_monotone_in_noise(louder: Release, quieter: Release) -> None:
    for count in (1, 30, 1000):
        assert epsilon({quieter: count}) <= epsilon({louder: count})
    assert epsilon({quieter: 1000}) < epsilon({louder: 1000})
    assert np.all(quieter.rdp([1.5, 2.0, 8.0, 33.3]) < louder.rdp([1.5, 2.0, 8.0, 33.3]))


@pytest.mark.parametrize("release", RELEASES, ids=repr)
def test_monotone_in_count_and_delta(release: Release) -> None:
    values = [epsilon({release: n}) for n in (0, 1, 2, 3, 10, 100, 1000)]
    assert values == sorted(values) and values[0] == 0.0
    assert values[-1] > values[-2]
    tails = [epsilon({release: 100}, delta) for delta in (1e-15, 1e-9, 1e-5, 1e-2)]
    assert tails == sorted(tails, reverse=True)


@pytest.mark.parametrize("release", RELEASES, ids=repr)
def test_exact_lies_below_renyi_and_below_pure(release: Release) -> None:
    for count in (1, 50):
        for delta in (1e-10, 1e-5):
            value = epsilon({release: count}, delta)
            assert value <= rdp_compose({release: count}, delta) * (1 + 1e-9)
            assert value <= count * release.pure_epsilon * (1 + 1e-9)


@pytest.mark.parametrize("release", [*RELEASES, *UNBOUNDED, Gaussian(math.inf)], ids=repr)
def test_round_trip(release: Release) -> None:
    plain = json.loads(json.dumps(release.to_dict(), allow_nan=False))
    assert release_from_dict(plain) == release
    assert hash(release_from_dict(plain)) == hash(release)
    assert pickle.loads(pickle.dumps(release)) == release


CLAIMS: list[Claim] = [RdpSlope("DPDFD", 0.1), NoisyVotesClaim("DGD", 0.1), WholeRun("LabelDP", 1.0)]


def test_a_fresh_process_reads_a_ledger_with_every_kind_of_release_and_claim(tmp_path: Path) -> None:
    """Which has imported the ledger, and nothing for the sake of what stands in it."""
    assert {claim.kind for claim in CLAIMS} == set(published._REGISTRY)
    charges = {Charge(release=release): 2 for release in [*RELEASES, *UNBOUNDED]}
    charges |= {Charge(release=Gaussian(0.1), claim=claim): 3 for claim in CLAIMS}
    ledger = Ledger(path=tmp_path / "ledger.jsonl", private_data="x", run="run", block=1)
    ledger.restore(charges)
    read = "from privacy.ledger import Ledger; found = Ledger(path='ledger.jsonl', private_data='x', run='y')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    asked = [sys.executable, "-c", f"{read}; print(repr(found.counts()))"]
    found = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == repr(ledger.counts())


def test_answers_drawn_at_once_cost_what_they_cost_one_by_one() -> None:
    answer = RandomizedResponse(1.0, 3)
    batch = Repeated(answer, 50)
    assert compose({batch: 2}, DELTA) == compose({answer: 100}, DELTA)
    assert compose({batch: 1, answer: 50}, DELTA).epsilon == pytest.approx(67.9245, abs=5e-5)
    # The mutant that prices a batch as one answer, as a claim about labels would.
    assert compose({answer: 2}, DELTA).epsilon < 3 < compose({batch: 2}, DELTA).epsilon


INFINITE = [
    *UNBOUNDED, Gaussian(math.inf), LaplaceVotes(0.0), SampledGaussian(0.0, 0.01), RandomizedResponse(math.inf, 10),
    RevealedGaussian(math.inf, 0.1),
]  # fmt: skip
FREE = [
    Gaussian(0.0), LaplaceVotes(math.inf), RandomizedResponse(0.0, 5), SampledGaussian(1.0, 0.0),
    SampledGaussian(math.inf, 0.5), RevealedGaussian(1.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("unbounded", INFINITE, ids=repr)
def test_unbounded_is_infinite_once_it_happens(unbounded: Release) -> None:
    assert epsilon({unbounded: 0, Gaussian(0.1): 1}) == epsilon({Gaussian(0.1): 1})
    assert compose({unbounded: 1}, DELTA).epsilon == math.inf
    assert compose({unbounded: 1, Gaussian(0.1): 1}, DELTA).method == "unbounded"
    assert rdp_compose({unbounded: 1}, DELTA) == math.inf


@pytest.mark.parametrize("free", FREE, ids=repr)
def test_what_reveals_nothing_is_free(free: Release) -> None:
    paid: dict[Release, int] = {LaplaceVotes(40.0): 10}
    assert epsilon({free: 10**6}) == 0.0
    assert epsilon({**paid, free: 10**6}) == pytest.approx(epsilon(paid), rel=1e-9)


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 50.0, 1e4])
@pytest.mark.parametrize("rate", [1e-6, 1e-2, 0.9999])
@pytest.mark.parametrize("delta", [1e-15, 1e-5])
def test_sampled_gaussian_extremes(noise: float, rate: float, delta: float) -> None:
    release = SampledGaussian(noise, rate)
    value = epsilon({release: 1000}, delta)
    assert 0.0 <= value <= epsilon({Gaussian(1 / noise): 1000}, delta) * (1 + 1e-4)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Gaussian(-1.0), lambda: RandomizedResponse(1.0, 1), lambda: SampledGaussian(1.0, 1.1),
        lambda: Unbounded(" "), lambda: LabelOnly(Gaussian(1.0)), lambda: compose({Gaussian(1.0): 1.5}, DELTA),
        lambda: compose({"gaussian": 1}, DELTA), lambda: compose({Gaussian(1.0): 1}, 0.0),
        lambda: Gaussian(1.0).rdp([1.0]),
    ],
)  # fmt: skip
def test_meaningless_arguments_raise(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"must .*got"):
        bad()


MANY: dict[Release, int] = {SampledGaussian(5.0, 0.05): 91}
FEW: dict[Release, int] = {SampledGaussian(0.5, 0.001): 1}
EITHER = OneOf.of([MANY, FEW])


def test_which_training_is_the_worst_follows_from_what_else_is_composed() -> None:
    """Choosing it once, by its own epsilon, would understate what two federations of the same clients cost."""
    assert epsilon({EITHER: 1}) == max(epsilon(MANY), epsilon(FEW)) == epsilon(MANY)
    many, mixed = epsilon({SampledGaussian(5.0, 0.05): 182}), epsilon({**MANY, **FEW})
    few = epsilon({SampledGaussian(0.5, 0.001): 2})
    assert epsilon({EITHER: 1, **FEW}) == max(mixed, few)
    assert epsilon({EITHER: 2}) == max(many, mixed, few) > many * 1.01, "the choice by itself is too small here"


def test_of_more_ways_than_are_gone_through_it_is_composed_by_renyi() -> None:
    assert compose({EITHER: 20}, DELTA).method == "rdp"
    assert epsilon({EITHER: 20}) == rdp_compose({EITHER: 20}, DELTA) >= epsilon({SampledGaussian(5.0, 0.05): 20 * 91})


def test_numbers_of_any_size_are_composed_at_once() -> None:
    """A budget is tried with a thousand million calls; nothing may be gone through one by one."""
    many = 10**9
    assert epsilon({Gaussian(1e-9): many}) == epsilon({OneOf.of([{Gaussian(1e-9): 1}]): many})
    assert epsilon({EITHER: many}) < math.inf


def test_order_of_the_trainings_is_nothing_and_it_is_about_what_they_are_about() -> None:
    assert OneOf.of([MANY, FEW]) == OneOf.of([FEW, MANY]) == OneOf.of([FEW, MANY, FEW])
    assert (EITHER.unit, EITHER.relation) == (Unit.RECORD, Relation.ADD_OR_REMOVE)
