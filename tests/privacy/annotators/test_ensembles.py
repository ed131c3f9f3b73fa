"""Sums over teachers on disjoint shards: what one teacher, all that a record changes, can move; noise and price.

Of bounded gradients (`GradientAnnotator`, DPDFD Algorithm 2) and of the directions of logits (`MeanResponseAnnotator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from support.neighbours import Neighbours, neighbours, worst_neighbours
from support.plans import plan_of
from support.seeded import Seeded
from support.short_names import budgeted

import privacy.annotators.gradient
import privacy.annotators.mean_response
import privacy.mechanisms.gradient_bounding
from privacy import Gaussian, GradientAnnotator
from privacy.annotators import Annotator, MeanResponseAnnotator
from privacy.published import dpdfd_rdp_slope

B, CLASSES, SIGMA, N = 16, 10, 20.0, 7
GRADIENTS, DIRECTIONS = GradientAnnotator, MeanResponseAnnotator
KINDS = pytest.mark.parametrize("kind", [GRADIENTS, DIRECTIONS])
#: Norm of what each teacher gives on an image at most.
BOUND = {GRADIENTS: 1e-3, DIRECTIONS: 1.0}


def annotator(kind: type[Annotator], *, batch_size: int = B, num_classes: int = CLASSES, **more: Any) -> Any:
    own = {"release": "ensemble", "norm_bound": BOUND[GRADIENTS]} if issubclass(kind, GRADIENTS) else {}
    made: Any = kind(**budgeted({"noise_multiplier": SIGMA, "noise": Seeded(), **own, **more}))
    made.bind(batch_size=batch_size, num_classes=num_classes, paper="DPDFD")
    made.open(private_data="digits/train")
    return made


def silent(kind: type[Annotator], **more: Any) -> Any:
    return annotator(kind, noise=Seeded(factor=0.0), **more)


def answers(teachers: int = N, seed: int = 0) -> torch.Tensor:
    return torch.randn(teachers, B, CLASSES, generator=torch.Generator().manual_seed(seed)).double()


def added(made: Any, *, teachers: int = N, calls: int = 60) -> torch.Tensor:
    """What was added to the mean of the teachers' bounded rows, (calls, B, c)."""
    rows = answers(teachers)
    if isinstance(made, GRADIENTS):
        mean = (made.norm_bound * rows / (rows.norm(dim=2, keepdim=True) + made.stability)).mean(dim=0)
    else:
        centred = rows - rows.mean(dim=2, keepdim=True)
        mean = (centred / centred.norm(dim=2, keepdim=True)).mean(dim=0)
    return torch.stack([made.annotate(rows) - mean for _ in range(calls)])


def has_deviation(draws: torch.Tensor, deviation: float) -> bool:
    """Two-sided chi-square test of the deviation; mean zero is part of it. Wrong once in 10⁶ for the right one."""
    statistic = float((draws / deviation).square().sum())
    return 2 * min(stats.chi2.cdf(statistic, draws.numel()), stats.chi2.sf(statistic, draws.numel())) > 1e-6


@KINDS
@pytest.mark.parametrize("teachers", [2, 100])
def test_the_noise_is_the_sums_divided_by_the_number_of_teachers(kind: type[Annotator], teachers: int) -> None:
    draws = added(annotator(kind), teachers=teachers)
    right = SIGMA * BOUND[kind] / teachers
    assert has_deviation(draws, right)
    assert stats.kstest(draws.flatten().numpy() / right, "norm").pvalue > 1e-6
    # Not divided; noise on each teacher's rows by itself; and the source's own noise, changed a little.
    for wrong in (right * teachers, right * math.sqrt(teachers), right * 0.95, right * 1.05):
        assert not has_deviation(draws, wrong)
    assert not has_deviation(added(annotator(kind, noise=Seeded(factor=0.95)), teachers=teachers), right)


class SharedRow(Seeded):
    """A source that gives every row of a batch the same noise."""

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        return super().gaussian(shape[-1:]).expand(tuple(shape))


def correlated(first: torch.Tensor, second: torch.Tensor) -> bool:
    found = float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])
    return abs(found) > 6.5 / math.sqrt(first.numel())


@KINDS
def test_each_row_and_each_call_has_noise_of_its_own(kind: type[Annotator]) -> None:
    draws = added(annotator(kind), calls=100)
    assert not any(correlated(draws[:, 0], draws[:, row]) for row in range(1, B))
    assert not correlated(draws[1:], draws[:-1])
    shared = added(annotator(kind, noise=SharedRow()), calls=100)
    assert correlated(shared[:, 0], shared[:, 1])


def moved(kind: type[Annotator], first: torch.Tensor, second: torch.Tensor, **more: Any) -> list[float]:
    """How far each image's row of the sum moves between two ensembles, noise left out."""
    shape = {"batch_size": first.shape[1], "num_classes": first.shape[2]}
    one, other = (silent(kind, **shape, **more).annotate(rows) for rows in (first, second))
    assert torch.isfinite(one).all() and torch.isfinite(other).all()
    return [len(first) * math.hypot(*row) for row in (one - other).tolist()]


def bounded(kind: type[Annotator], first: torch.Tensor, second: torch.Tensor, **more: Any) -> bool:
    bound = more.get("norm_bound", BOUND[GRADIENTS] if issubclass(kind, GRADIENTS) else 1.0)
    return max(moved(kind, first, second, **more)) <= 2 * bound * (1 + 1e-12)


@given(
    neighbours(),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    st.sampled_from(["normalize", "clip"]),
    st.sampled_from([0.0, 1e-4]),
    st.sampled_from([None, 1]),
)
@example(worst_neighbours(changed=1), 1e-3, "normalize", 0.0, None)
@example(worst_neighbours(changed=1), 1e-3, "clip", 0.0, None)
def test_one_teacher_moves_each_row_of_gradients_by_two_norm_bounds_at_most(
    pair: Neighbours, norm_bound: float, bounding: str, stability: float, top_k: int | None
) -> None:
    more = {"norm_bound": norm_bound, "bounding": bounding, "stability": stability, "top_k": top_k}
    assert bounded(GRADIENTS, *pair, **more)


#: Logits of one teacher whose sum is beyond all numbers, (1, 1, 3).
HUGE = torch.full((1, 1, 3), 1.7e308, dtype=torch.float64)


@given(neighbours())
@example(worst_neighbours(changed=1))
@example((HUGE.repeat(2, 1, 1), torch.cat([HUGE * torch.tensor([-1.0, 0.0, 1.0]), HUGE])))
def test_one_teacher_moves_each_row_of_directions_by_two_at_most(pair: Neighbours) -> None:
    assert bounded(DIRECTIONS, *pair)


@KINDS
def test_the_bound_is_reached_and_two_teachers_break_it(kind: type[Annotator]) -> None:
    """Overlapping shards would: one record would be in two of them."""
    assert max(moved(kind, *worst_neighbours(changed=1))) == pytest.approx(2 * BOUND[kind], rel=1e-6)
    assert max(moved(kind, *worst_neighbours(changed=2))) == pytest.approx(4 * BOUND[kind], rel=1e-6)
    assert not bounded(kind, *worst_neighbours(changed=2))
    first = torch.randn(500, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    second = first.clone()
    second[17] = -1e9 * first[17]
    assert bounded(kind, first, second)
    second[18] = -1e9 * first[18]
    assert not bounded(kind, first, second)


def holds(kind: type[Annotator]) -> bool:
    """Whether the bound holds where one teacher turns round, and where it breaks on an image."""
    more = {"norm_bound": 7.3} if kind is GRADIENTS else {}
    first, second = worst_neighbours(changed=1)
    broken = first.clone()
    broken[0, 0, 1] = math.inf
    try:
        return bounded(kind, first, second, **more) and bounded(kind, first, broken, **more)
    except AssertionError:  # what is released is not finite
        return False


def _plain(rows: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
    return torch.nan_to_num(norm_bound * rows)


def _double(rows: torch.Tensor) -> torch.Tensor:
    return rows.double()


def _unguarded(rows: torch.Tensor, **_: float) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True).add(1e-9)


_MEAN = privacy.annotators.mean_response
MUTANTS: dict[str, tuple[type[Annotator], list[tuple[Any, str, Callable[..., torch.Tensor]]]]] = {
    "gradients not normalised": (GRADIENTS, [(privacy.mechanisms.gradient_bounding, "normalize_per_sample", _plain)]),
    "gradients that are not finite": (GRADIENTS, [(privacy.annotators.gradient, "zero_non_finite_samples", _double)]),
    "directions not normalised": (DIRECTIONS, [(_MEAN, "normalize_per_sample", _plain)]),
    # Norms alone, without the guard that turns what is not a number into zeros.
    "directions that are not finite": (
        DIRECTIONS,
        [(_MEAN, "zero_non_finite_samples", _double), (_MEAN, "normalize_per_sample", _unguarded)],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_not_bounded_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, changes = MUTANTS[name]
    assert holds(kind)
    for module, function, mutant in changes:
        monkeypatch.setattr(module, function, mutant)
    assert not holds(kind)


class MeanGradientFirst(GradientAnnotator):
    """The mutant that bounds the teachers' mean in place of each teacher's row."""

    def _bounded(self, gradients: torch.Tensor) -> torch.Tensor:
        teachers = gradients.unflatten(0, (-1, self.shape[0]))
        return super()._bounded(teachers.mean(dim=0)).repeat(len(teachers), 1)


class MeanLogitsFirst(MeanResponseAnnotator):
    """The same mutant."""

    def annotate(self, logits: torch.Tensor) -> torch.Tensor:
        return super().annotate(logits.mean(dim=0, keepdim=True).expand_as(logits))


@pytest.mark.parametrize(("kind", "mutant"), [(GRADIENTS, MeanGradientFirst), (DIRECTIONS, MeanLogitsFirst)])
def test_rows_are_bounded_before_they_are_added_up(kind: type[Annotator], mutant: type[Annotator]) -> None:
    """Of the mean, one loud teacher decides alone where it points."""
    first, second = worst_neighbours(changed=1)
    first[0], second[0] = 1e3 * first[0], 1e3 * second[0]
    assert bounded(kind, first, second)
    assert not bounded(mutant, first, second)


def test_only_directions_of_logits_count() -> None:
    """Neither what is added to all logits of a row, which no softmax sees, nor how large they are."""
    plain = silent(DIRECTIONS).annotate(answers())
    centred = answers() - answers().mean(dim=2, keepdim=True)
    assert torch.allclose(plain, (centred / centred.norm(dim=2, keepdim=True)).mean(dim=0))
    for same in (answers() + 100 * answers(seed=1)[:, :, :1], 1e5 * answers()):
        assert torch.allclose(silent(DIRECTIONS).annotate(same), plain)
    assert not torch.allclose(silent(DIRECTIONS).annotate(-answers()), plain)


@KINDS
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_teacher_is_left_out_of_the_sum_and_counted_in_the_mean(kind: type[Annotator], broken: float) -> None:
    """Dividing by those that work would tell how many do."""
    given = answers()
    given[3] = broken
    zeros = answers()
    zeros[3] = 0.0
    one, other = (annotator(kind).annotate(rows) for rows in (given, zeros))
    assert torch.isfinite(one).all() and torch.equal(one, other)


@KINDS
@pytest.mark.parametrize(("batch_size", "sigma"), [(1, 5.0), (16, 20.0), (256, 100.0)])
def test_the_charge(kind: type[Annotator], batch_size: int, sigma: float) -> None:
    charge = annotator(kind, batch_size=batch_size, noise_multiplier=sigma).charge
    assert charge.release == Gaussian(mu=math.sqrt(batch_size) * 2 / sigma) and charge.queries == batch_size
    if kind is DIRECTIONS:
        assert charge.claim is None
        return
    assert charge.claim.source == "DPDFD Theorem 3"
    assert charge.claim.slope == dpdfd_rdp_slope(1e-3, CLASSES, batch_size, sigma)
    single = annotator(kind, release="per_sample", batch_size=batch_size, noise_multiplier=sigma).charge
    assert charge.claim == single.claim
    assert single.release.gaussian_mu == pytest.approx(batch_size * charge.release.gaussian_mu)


SHAPES = [
    (B, CLASSES),
    (0, B, CLASSES),
    (N, B - 1, CLASSES),
    (N, B, CLASSES + 1),
    (N * B, CLASSES),
    (1, N, B, CLASSES),
    (),
]


@KINDS
def test_another_shape_is_refused_and_not_charged(kind: type[Annotator]) -> None:
    made = annotator(kind)
    for shape in SHAPES:
        with pytest.raises(ValueError, match=r"shape \(n, B, c\) with \(B, c\) = \(16, 10\) that is charged for, got"):
            made.annotate(torch.zeros(shape))
    single = annotator(GRADIENTS, release="per_sample")
    with pytest.raises(ValueError, match=r"shape \(B, c\) = \(16, 10\)"):
        single.annotate(answers())
    assert not made.account.counts() and not single.account.counts()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            GRADIENTS,
            "the sum over all teachers with Gaussian noise of standard deviation sigma*C = 20*C per coordinate",
        ),
        (GRADIENTS, "one record moves one gradient on each image by up to 2C"),
        (DIRECTIONS, "sigma=20 on the sum of each coordinate (B=16 images in a call)"),
        (DIRECTIONS, "one record moves one teacher's direction on each image by up to 2"),
    ],
)
def test_the_guarantee_is_about_a_record_of_one_teacher(kind: type[Annotator], words: str) -> None:
    made = annotator(kind)
    made.annotate(answers())
    guarantee = made.guarantee(artefacts=["student"], planned=plan_of(made, 1))
    page = guarantee.to_markdown()
    assert guarantee.unit == "one training record of one teacher"
    assert guarantee.epsilon == made.account.epsilon() < math.inf and "VOID" not in page
    assert all(part in page for part in (words, "a record's id alone decides its shard", "share nothing"))
    single = annotator(GRADIENTS, release="per_sample")
    single.annotate(answers()[0])
    other = single.guarantee(artefacts=["student"], planned=plan_of(single, 1))
    assert other.unit == "one training record of the teacher" and words not in other.to_markdown()


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, 1e-31, 1e31, math.inf, math.nan])
def test_noise_without_a_meaning_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        MeanResponseAnnotator(noise_multiplier=noise_multiplier)
