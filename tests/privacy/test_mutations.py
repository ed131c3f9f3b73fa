"""Ways in which an answer's candidates go wrong: each check passes as the code is, and fails for the mutant."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from support.attacks import randomized_response_table, table_score
from support.auditing import audit, worst_case_epsilon
from support.seeded import Seeded

from privacy import RandomizedResponse, compose
from privacy.mechanisms.randomized_response import randomized_response, top_k_candidates

DELTA = 1e-5
CONFIDENCE = 0.999
TRIALS = 1500


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


def row_of(choose: Choice, teacher: torch.Tensor, epsilon: float) -> np.ndarray:
    """How likely each answer is."""
    return randomized_response_table(epsilon, choose(teacher, STUDENT)[0].numpy())[int(teacher.argmax())]


def exactly_private(choose: Choice, epsilon: float) -> bool:
    """By enumeration: the answer's distribution for each teacher, over all pairs of them."""
    return worst_case_epsilon([row_of(choose, teacher, epsilon) for teacher in TEACHERS]) <= epsilon * (1 + 1e-9)


def privately_answered(choose: Choice, epsilon: float, there: torch.Tensor, away: torch.Tensor) -> bool:
    """By attack on the answers themselves."""
    noise = Seeded()

    def sampler(teacher: torch.Tensor) -> Callable[[int], torch.Tensor]:
        candidates, label = choose(teacher, STUDENT), teacher.argmax(dim=1)
        return lambda count: randomized_response(
            label.expand(count), candidates.expand(count, 10), epsilon=epsilon, noise=noise
        )

    claimed = compose({RandomizedResponse(epsilon, 3): 1}, DELTA).epsilon
    score = table_score(row_of(choose, there, epsilon), row_of(choose, away, epsilon))
    found = audit(
        sampler(there), sampler(away), score, trials=TRIALS, delta=DELTA, confidence=CONFIDENCE, claimed_epsilon=claimed
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
    table, delta = randomized_response_table(1.0, [True] * 2 + [False] * 8), 0.1

    def exact(size: int) -> float:
        """δ over the two candidates at the epsilon that so many are charged."""
        at = compose({RandomizedResponse(1.0, size): 1}, delta).epsilon
        return float(np.maximum(table[0] - math.exp(at) * table[1], 0.0).sum())

    assert exact(2) <= delta * (1 + 1e-6)
    assert exact(10) > delta * 1.01
