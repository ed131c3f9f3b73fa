"""Sums over teachers on disjoint shards: noise, price and broken teachers of the directions of logits.

What one teacher can move is in `test_gradient_bounding.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from support.plans import plan_of
from support.seeded import Seeded, SharedRow, correlated, has_deviation
from support.sessions import session_of

from privacy import Gaussian
from privacy.mechanisms import Mechanism, NoisyGradients, NoisyMeanResponse, Shape
from privacy.session import PrivacySession
from privacy.statement import guarantee_of

B, CLASSES, SIGMA, N = 16, 10, 20.0, 7
GRADIENTS, DIRECTIONS = NoisyGradients, NoisyMeanResponse
KINDS = pytest.mark.parametrize("kind", [GRADIENTS, DIRECTIONS])


def session(
    kind: type[Mechanism] = DIRECTIONS, *, batch_size: int = B, num_classes: int = CLASSES, **more: Any
) -> PrivacySession:
    own = {"release": "ensemble"} if kind is GRADIENTS else {}
    settings = {"noise_multiplier": SIGMA, "noise": Seeded(), **own, **more}
    return session_of(kind, Shape(batch_size, num_classes, "DPDFD"), **settings)


def asked(made: PrivacySession, rows: torch.Tensor) -> torch.Tensor:
    return made.release(made.mechanism, rows)


def answers(teachers: int = N, seed: int = 0) -> torch.Tensor:
    return torch.randn(teachers, B, CLASSES, generator=torch.Generator().manual_seed(seed)).double()


def directions(rows: torch.Tensor) -> torch.Tensor:
    """By hand, of logits (n, B, c)."""
    centred = rows - rows.mean(dim=2, keepdim=True)
    return centred / centred.norm(dim=2, keepdim=True)


def added(made: PrivacySession, *, teachers: int = N, calls: int = 60) -> torch.Tensor:
    """What was added to the mean of the teachers' directions, (calls, B, c)."""
    rows = answers(teachers)
    return torch.stack([asked(made, rows) - directions(rows).mean(dim=0) for _ in range(calls)])


@pytest.mark.parametrize("teachers", [2, 100])
def test_the_noise_is_the_sums_divided_by_the_number_of_teachers(teachers: int) -> None:
    draws, right = added(session(), teachers=teachers), SIGMA / teachers
    assert has_deviation(draws, right)
    assert stats.kstest(draws.flatten().numpy() / right, "norm").pvalue > 1e-6
    # Not divided; noise on each teacher's rows by itself; and the source's own noise, changed a little.
    for wrong in (right * teachers, right * math.sqrt(teachers), right * 0.95, right * 1.05):
        assert not has_deviation(draws, wrong)
    assert not has_deviation(added(session(noise=Seeded(factor=0.95)), teachers=teachers), right)


def test_each_row_and_each_call_has_noise_of_its_own() -> None:
    draws = added(session(), calls=100)
    assert not any(correlated(draws[:, 0], draws[:, row]) for row in range(1, B))
    assert not correlated(draws[1:], draws[:-1])
    shared = added(session(noise=SharedRow()), calls=100)
    assert correlated(shared[:, 0], shared[:, 1])


@KINDS
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_teacher_is_left_out_of_the_sum_and_counted_in_the_mean(kind: type[Mechanism], broken: float) -> None:
    """Dividing by those that work would tell how many do."""
    given = answers()
    given[3] = broken
    zeros = answers()
    zeros[3] = 0.0
    one, other = (asked(session(kind), rows) for rows in (given, zeros))
    assert torch.isfinite(one).all() and torch.equal(one, other)


@pytest.mark.parametrize(("batch_size", "sigma"), [(1, 5.0), (16, 20.0), (256, 100.0)])
def test_the_charge(batch_size: int, sigma: float) -> None:
    charge = session(batch_size=batch_size, noise_multiplier=sigma).cost
    assert charge.release == Gaussian(mu=math.sqrt(batch_size) * 2 / sigma) and charge.queries == batch_size
    assert charge.claim is None


SHAPES = [(B, CLASSES), (0, B, CLASSES), (N, B - 1, CLASSES), (N, B, CLASSES + 1), (1, N, B, CLASSES), ()]


@KINDS
def test_another_shape_is_refused_and_not_charged(kind: type[Mechanism]) -> None:
    made = session(kind)
    for shape in SHAPES:
        with pytest.raises(ValueError, match=r"shape \(n, B, c\) with \(B, c\) = \(16, 10\) that is charged for, got"):
            asked(made, torch.zeros(shape))
    single = session(GRADIENTS, release="per_sample")
    with pytest.raises(ValueError, match=r"shape \(B, c\) = \(16, 10\)"):
        asked(single, answers())
    assert not made.account.counts() and not single.account.counts()


@pytest.mark.parametrize("kind", [GRADIENTS, DIRECTIONS, None])
def test_the_guarantee_is_about_a_record_of_one_teacher(kind: type[Mechanism] | None) -> None:
    """Negative control: of a single teacher it is not."""
    made = session(GRADIENTS, release="per_sample") if kind is None else session(kind)
    asked(made, answers()[0] if kind is None else answers())
    made.plan = plan_of(made, 1)
    guarantee = guarantee_of(made, artefacts=["student"])
    assert guarantee.epsilon == made.account.epsilon() < math.inf
    assert (guarantee.unit == "one training record of one teacher") is (kind is not None)
    assert any("share nothing" in text for text in guarantee.assumptions) is (kind is not None)
