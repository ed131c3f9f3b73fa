"""Ways in which a private mechanism goes wrong: each check passes as the code is, and fails for the mutant."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest
import torch
from support.attacks import gaussian_score, randomized_response_table, rounds
from support.seeded import Seeded

import privacy.mechanisms.gradient_bounding
from privacy import (
    GradientAnnotator,
    NoiseSource,
    RandomizedResponse,
    audit,
    compose,
    compose_delta,
    worst_case_epsilon,
)
from privacy.auditing import Score
from privacy.mechanisms.randomized_response import randomized_response, top_k_candidates

DELTA = 1e-5
CONFIDENCE = 0.999
TRIALS = 1500
B, CLASSES = 4, 10
#: σ of each release such that one step has μ = 0.5: its ε of 2 is in reach of a game of a thousand rounds.
SIGMA = {"per_sample": 32.0, "per_sample_full": 8.0, "batch_mean": 16.0, "batch_mean_rows": 8.0, "ensemble": 8.0}
ENSEMBLE = 5

ReleaseName = Literal["per_sample", "per_sample_full", "batch_mean", "batch_mean_rows", "ensemble"]


def annotator(
    release: ReleaseName, noise: NoiseSource | None = None, kind: type[GradientAnnotator] = GradientAnnotator
) -> GradientAnnotator:
    made = kind(release=release, noise_multiplier=SIGMA[release], noise=noise or Seeded())
    made.bind(batch_size=B, num_classes=CLASSES)
    made.open(private_data="digits/train")
    assert made.charge.release.gaussian_mu == pytest.approx(0.5)
    return made


def rows(first: Sequence[float]) -> torch.Tensor:
    """Gradients along one class: one row each."""
    given = torch.zeros(B, CLASSES)
    given[:, 0] = torch.tensor(first)
    return given


def of_teachers(changing: torch.Tensor, *, changed: int) -> torch.Tensor:
    """Gradients (n, B, c) of an ensemble whose first teachers give `changing`, and the others what they always give."""
    others = torch.randn(ENSEMBLE - changed, B, CLASSES, generator=torch.Generator().manual_seed(0))
    return torch.cat([changing.expand(changed, B, CLASSES), others])


def charge_covers_what_leaves(
    made: GradientAnnotator,
    *,
    there: torch.Tensor,
    score: Score | None = None,
    steps: int = 1,
    charged: int | None = None,
    changed: int = 1,
) -> bool:
    """Audits `steps` calls on `there` against the same on its negative, and compares with what they are charged.

    Args:
        made: The annotator under test.
        there: Gradients with the record; without it they are turned round.
        score: The attacker's; by default the best for noise of one deviation on all coordinates.
        steps: Calls that are released together.
        charged: How many of them the ledger knows of; None is all.
        changed: How many teachers of an ensemble the record changes.
    """
    claimed = compose({made.charge.release: steps if charged is None else charged}, DELTA).epsilon

    def run(given: torch.Tensor) -> torch.Tensor:
        asked = given if made.release != "ensemble" else of_teachers(given, changed=changed)
        return torch.stack([made.annotate(asked) for _ in range(steps)]).sum(dim=0)

    found = audit(
        rounds(run, there),
        rounds(run, -there),
        trials=TRIALS,
        delta=DELTA,
        confidence=CONFIDENCE,
        score=score or gaussian_score(there, -there),
        method="gaussian",
        release=made.charge.release,
        claimed_epsilon=claimed,
    )
    return not found.fails


RELEASES: tuple[ReleaseName, ...] = ("per_sample", "per_sample_full", "batch_mean", "batch_mean_rows", "ensemble")
#: All of them, the fast suite one.
ONE_FAST = [pytest.param(name, marks=() if name == "per_sample" else pytest.mark.slow) for name in RELEASES]


@pytest.mark.parametrize("release", ONE_FAST)
def test_skipped_normalisation(release: ReleaseName, monkeypatch: pytest.MonkeyPatch) -> None:
    there = rows([3.0] * B)
    assert charge_covers_what_leaves(annotator(release), there=there)

    def skipped(given: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        return norm_bound * given

    monkeypatch.setattr(privacy.mechanisms.gradient_bounding, "normalize_per_sample", skipped)
    assert not charge_covers_what_leaves(annotator(release), there=there)


@pytest.mark.slow
def test_a_record_in_two_shards() -> None:
    """Shards that overlap: the record changes two teachers, and is charged for one."""
    there = rows([1e6] * B)
    assert charge_covers_what_leaves(annotator("ensemble"), there=there, changed=1)
    assert not charge_covers_what_leaves(annotator("ensemble"), there=there, changed=2)


class Forgetful(GradientAnnotator):
    """Charges the first call alone."""

    def annotate(self, gradients: torch.Tensor) -> torch.Tensor:
        if not self.account.counts():
            return super().annotate(gradients)
        account, hidden = self._account, annotator(self.release, self.noise)
        self._account = hidden._account
        try:
            return super().annotate(gradients)
        finally:
            self._account = account


STEPS = 4


def counted(release: ReleaseName, kind: type[GradientAnnotator]) -> int:
    """What the ledger holds after `STEPS` calls."""
    made, there = annotator(release, kind=kind), rows([1e6] * B)
    for _ in range(STEPS):
        made.annotate(there if release != "ensemble" else of_teachers(there, changed=1))
    charges = made.account.counts()
    assert set(charges) == {made.charge}
    return charges[made.charge]


@pytest.mark.parametrize("release", ["per_sample", "batch_mean", "ensemble"])
def test_a_forgotten_charge(release: ReleaseName) -> None:
    assert counted(release, GradientAnnotator) == STEPS
    assert counted(release, Forgetful) == 1


def candidates_from_student(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    return top_k_candidates(student, k=3)


def candidates_from_teacher(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """The mutant: the set itself tells what the teacher thinks."""
    return top_k_candidates(teacher, k=3)


def size_from_teacher(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """The mutant: the more certain the teacher, the fewer candidates."""
    k = 2 + int((teacher.softmax(dim=1) > 0.05).sum(dim=1).clamp(0, 6))
    return top_k_candidates(student, k=k)


Choice = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STUDENT = torch.arange(10.0).flip(0)[None]
#: Teachers that one record may turn into one another, with logits of shape (1, 10).
TEACHERS = [
    torch.nn.functional.one_hot(torch.tensor([label]), 10).double() * height + tilt * torch.arange(10.0)
    for label in range(10)
    for height, tilt in ((20.0, 0.0), (0.5, 0.01), (20.0, 0.3))
]


def exactly_private(choose: Choice, epsilon: float) -> bool:
    """By enumeration: the answer's distribution for each teacher, over all pairs of them."""
    table = [
        randomized_response_table(epsilon, choose(teacher, STUDENT)[0].numpy())[int(teacher.argmax())]
        for teacher in TEACHERS
    ]
    return worst_case_epsilon(table) <= epsilon * (1 + 1e-9)


def privately_answered(choose: Choice, epsilon: float, there: torch.Tensor, away: torch.Tensor) -> bool:
    """By attack on the answers themselves."""
    noise = Seeded()

    def sampler(teacher: torch.Tensor) -> Callable[[int], torch.Tensor]:
        candidates, label = choose(teacher, STUDENT), teacher.argmax(dim=1)
        return lambda count: randomized_response(
            label.expand(count), candidates.expand(count, 10), epsilon=epsilon, noise=noise
        )

    claimed = compose({RandomizedResponse(epsilon, 3): 1}, DELTA).epsilon
    found = audit(
        sampler(there), sampler(away), trials=TRIALS, delta=DELTA, confidence=CONFIDENCE, claimed_epsilon=claimed
    )
    return not found.fails


def test_candidates_taken_from_the_teacher() -> None:
    there, away = TEACHERS[0], TEACHERS[-1]
    assert exactly_private(candidates_from_student, 1.0)
    assert privately_answered(candidates_from_student, 1.0, there, away)
    assert not exactly_private(candidates_from_teacher, 1.0)
    assert not privately_answered(candidates_from_teacher, 1.0, there, away)


def test_the_number_of_candidates_taken_from_the_teacher() -> None:
    """The student's candidates, but the teacher's certainty says how many: k is then an answer of its own."""
    certain, wavering = TEACHERS[0], TEACHERS[1]
    assert int(size_from_teacher(certain, STUDENT).sum()) < int(size_from_teacher(wavering, STUDENT).sum())
    assert not exactly_private(size_from_teacher, 1.0)
    assert not privately_answered(size_from_teacher, 1.0, certain, wavering)
    assert privately_answered(candidates_from_student, 1.0, certain, wavering)


def test_varying_sizes_charged_at_the_largest() -> None:
    """The smallest k in use dominates; a ledger that writes down the largest one undercharges."""
    table, at = randomized_response_table(1.0, [True] * 2 + [False] * 8), 0.5
    # Over the two candidates, at an epsilon where δ is still positive.
    exact = float(np.maximum(table[0] - math.exp(at) * table[1], 0.0).sum())
    assert exact <= compose_delta({RandomizedResponse(1.0, 2): 1}, at) * (1 + 1e-6)
    assert exact > compose_delta({RandomizedResponse(1.0, 10): 1}, at)
