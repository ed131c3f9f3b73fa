"""Every mechanism as it runs: audited ≤ exact ≤ Renyi, and ≤ published exactly where the paper's claim is sound."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.auditing import (
    Method,
    Sampler,
    Score,
    audit,
    gaussian_score,
    randomized_response_table,
    rounds,
    table_score,
)
from support.closed_forms import rdp_compose
from support.seeded import Seeded
from support.sessions import asked, session_of

from privacy import Gaussian, LaplaceVotes, RandomizedResponse, Release, SampledGaussian, compose, published_dgd_epsilon
from privacy.attacks.result import AuditResult
from privacy.mechanisms import NoisyGradients, NoisyVotes, Shape
from privacy.mechanisms.bounding import clip_per_sample
from privacy.mechanisms.noisy_labels import randomized_response
from privacy.session import PrivacySession

DELTA = 1e-5
CONFIDENCE = 0.999
TRIALS = 6000
#: Where a round is a call of a session, half a millisecond each.
CALLS = 4000
#: What the mutants have left of the noise that they are charged for.
CUT = 0.05

Players = tuple[Sampler, Sampler, Score]


@dataclass(frozen=True, eq=False)
class Case:
    """One mechanism on one pair of neighbours.

    Attributes:
        name: Of the test.
        play: From the share of its noise that the mechanism has, to rounds with the record, without it, and the score.
        counts: What it is charged as.
        published: What the paper claims for it at DELTA, None where no paper does.
        sound: Whether the claim covers a record.
        trials: Rounds of each kind.
    """

    name: str
    play: Callable[[float], Players]
    counts: Mapping[Release, int]
    published: float | None = None
    sound: bool = True
    trials: int = TRIALS


def gradient_case() -> Case:
    """A teacher whose every answer one record turns round, through the door of a real run."""
    rows = torch.zeros(8, 10)
    rows[:, 0] = 1e6

    def session(factor: float) -> PrivacySession:
        noise = Seeded(factor=factor)
        return session_of(NoisyGradients, Shape(8, 10, "DPDFD"), noise_multiplier=60.0, noise=noise)

    def play(factor: float) -> Players:
        made = session(factor)
        return rounds(asked, made, rows), rounds(asked, made, -rows), gaussian_score(rows, -rows)

    made = session(1.0)
    published = made.account.epsilon_published(counts={made.cost: 1})
    return Case("per_sample", play, {made.cost.release: 1}, published, sound=False, trials=CALLS)


def answers_case(name: str, answers: int, *, sound: bool, size: int = 3) -> Case:
    """The label moves within the candidates on every query."""
    candidates = torch.arange(10) < size

    def play(factor: float) -> Players:
        noise = Seeded()
        table = randomized_response_table(1.0 / factor, candidates.numpy())

        def sampler(label: int) -> Sampler:
            return lambda count: randomized_response(
                torch.full((count * answers,), label),
                candidates.expand(count * answers, 10),
                epsilon=1.0 / factor,
                noise=noise,
            ).reshape(count, answers)

        return sampler(0), sampler(1), table_score(table[0], table[1])

    return Case(name, play, {RandomizedResponse(1.0, size): answers}, 1.0, sound)


def votes_case(kind: Any, scale: float, release: Release, published: float | None) -> Case:
    """Three queries on which one teacher decides."""

    def play(factor: float) -> Players:
        noise = Seeded()

        def sampler(counts: list[int]) -> Sampler:
            votes, shape = NoisyVotes(kind=kind, scale=scale * factor, noise=noise), Shape(3, 3)
            return lambda count: votes.answer(shape, torch.tensor([counts]).expand(count * 3, 3)).reshape(count, 3)

        # The log-likelihood ratio up to scale: the two classes change places, and the third is as likely.
        return (
            sampler([10, 9, 0]),
            sampler([9, 10, 0]),
            lambda labels: ((labels == 0) * 1.0 - (labels == 1)).sum(axis=1),
        )

    return Case(f"{kind}_votes", play, {release: 3}, published)


def play_dp_sgd(factor: float) -> Players:
    """One Poisson-sampled step on a record whose gradient is clipped to 1, and the same step without the record."""
    noise, rate = Seeded(), 0.3
    gradient = clip_per_sample(torch.tensor([[30.0, -40.0]]), norm_bound=1.0)

    def sampler(there: bool) -> Sampler:
        def step(count: int) -> torch.Tensor:
            sampled = torch.from_numpy(noise.words(count) < int(rate * 2**64))[:, None] & there
            return sampled * gradient + factor * noise.gaussian((count, 2))

        return step

    return sampler(True), sampler(False), gaussian_score(gradient, 0.0 * gradient)


CASES = [
    gradient_case(),
    answers_case("one_answer", 1, sound=True),
    answers_case("dpsd_label", 20, sound=False),
    answers_case("labeldp", 20, sound=False, size=2),
    votes_case("laplace", 2.0, LaplaceVotes(2.0), published_dgd_epsilon(3, 1.0, DELTA)),
    votes_case("gaussian", 4.0, Gaussian(math.sqrt(2) / 4.0), None),
    Case("dp_sgd_step", play_dp_sgd, {SampledGaussian(1.0, 0.3): 1}),
]
GAUSSIAN = [case for case in CASES if all(release.gaussian_mu is not None for release in case.counts)]
# No game of a thousand rounds rises above an epsilon of ten or more, whatever the noise.
SMALL = [case for case in CASES if compose(case.counts, DELTA).epsilon < 5.0]


@functools.cache
def attack(case: Case, factor: float = 1.0, method: Method = "any") -> AuditResult:
    there, away, score = case.play(factor)
    return audit(
        there,
        away,
        score,
        trials=case.trials if factor == 1.0 else TRIALS // 3,
        delta=DELTA,
        confidence=CONFIDENCE,
        method=method,
        claimed_epsilon=compose(case.counts, DELTA).epsilon,
    )


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_audited_lies_below_exact_and_exact_below_renyi(case: Case) -> None:
    exact, found = compose(case.counts, DELTA).epsilon, attack(case)
    assert 0.05 < found.epsilon_lower <= exact <= rdp_compose(case.counts, DELTA) * (1 + 1e-9)
    assert not found.fails
    if case.published is not None:
        assert (found.epsilon_lower <= case.published) == case.sound


@pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
def test_the_bracket_breaks_where_noise_is_missing(case: Case) -> None:
    assert attack(case, CUT, "gaussian" if case in GAUSSIAN else "any").fails
