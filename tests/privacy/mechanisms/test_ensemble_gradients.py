"""DPDFD Algorithm 2: noise on the sum over teachers, and what one teacher, all that a record changes, can move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from scipy import stats
from support.neighbours import Neighbours, neighbours, worst_neighbours
from support.plans import plan_of
from support.seeded import Seeded
from support.short_names import budgeted

import privacy.annotators.gradient
import privacy.mechanisms.gradient_bounding
from privacy import BudgetExceeded, Gaussian, GradientAnnotator, compose, published_dpdfd_epsilon
from privacy.published import dpdfd_rdp_slope

B, C, CLASSES, SIGMA = 16, 1e-3, 10, 20.0
N = 7


def annotator(
    *, batch_size: int = B, num_classes: int = CLASSES, kind: type[GradientAnnotator] = GradientAnnotator, **more: Any
) -> GradientAnnotator:
    made = kind(
        **budgeted({"release": "ensemble", "norm_bound": C, "noise_multiplier": SIGMA, "noise": Seeded(), **more})
    )
    made.bind(batch_size=batch_size, num_classes=num_classes, paper="DPDFD")
    made.open(private_data="digits/train")
    return made


def gradients(teachers: int = N, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(teachers, B, CLASSES, generator=torch.Generator().manual_seed(seed))
    return drawn.double()


class SharedRow(Seeded):
    """A source that gives every row of a batch the same noise."""

    def gaussian(self, shape: Sequence[int]) -> torch.Tensor:
        return super().gaussian(shape[-1:]).expand(tuple(shape))


def added(made: GradientAnnotator, *, teachers: int = N, calls: int = 60) -> torch.Tensor:
    """What was added to the mean of the teachers' normalised rows, (calls, B, c)."""
    rows = gradients(teachers)
    mean = (C * rows / (rows.norm(dim=2, keepdim=True) + made.stability)).mean(dim=0)
    return torch.stack([made.annotate(rows) - mean for _ in range(calls)])


def has_deviation(draws: torch.Tensor, deviation: float) -> bool:
    """Two-sided chi-square test of the deviation; mean zero is part of it. Wrong once in 10⁶ for the right one."""
    statistic = float((draws / deviation).square().sum())
    return 2 * min(stats.chi2.cdf(statistic, draws.numel()), stats.chi2.sf(statistic, draws.numel())) > 1e-6


@pytest.mark.parametrize("teachers", [2, N, 100])
def test_the_noise_is_the_sums_divided_by_the_number_of_teachers(teachers: int) -> None:
    draws = added(annotator(), teachers=teachers)
    right = SIGMA * C / teachers
    assert has_deviation(draws, right)
    assert stats.kstest(draws.flatten().numpy() / right, "norm").pvalue > 1e-6
    # Not divided; noise on each teacher's rows by itself; and the source's own noise, changed a little.
    for wrong in (SIGMA * C, SIGMA * C / math.sqrt(teachers), right * 0.95, right * 1.05):
        assert not has_deviation(draws, wrong)
    assert not has_deviation(added(annotator(noise=Seeded(factor=0.95)), teachers=teachers), right)


def correlated(first: torch.Tensor, second: torch.Tensor) -> bool:
    found = float(np.corrcoef(first.flatten().numpy(), second.flatten().numpy())[0, 1])
    return abs(found) > 5 / math.sqrt(first.numel())


def test_each_row_and_each_call_has_noise_of_its_own() -> None:
    draws = added(annotator(), calls=100)
    for row in range(1, B):
        assert not correlated(draws[:, 0], draws[:, row])
    assert not correlated(draws[1:], draws[:-1])
    shared = added(annotator(noise=SharedRow()), calls=100)
    assert correlated(shared[:, 0], shared[:, 1])


def test_one_teacher_has_the_noise_and_the_price_of_a_row_by_itself() -> None:
    alone, rows = annotator(), annotator(release="per_sample_full")
    answers = gradients(teachers=1)
    assert torch.equal(alone.annotate(answers), rows.annotate(answers[0]))
    assert alone.charge == rows.charge


def moved(first: torch.Tensor, second: torch.Tensor, **more: Any) -> list[float]:
    """How far each image's row of the sum moves between two ensembles, noise left out."""
    one, other = (
        annotator(batch_size=rows.shape[1], num_classes=rows.shape[2], noise=Seeded(factor=0.0), **more).annotate(rows)
        for rows in (first, second)
    )
    assert torch.isfinite(one).all() and torch.isfinite(other).all()
    return [len(first) * math.hypot(*row) for row in (one - other).tolist()]


def bounded(first: torch.Tensor, second: torch.Tensor, *, norm_bound: float = C, **more: Any) -> bool:
    return max(moved(first, second, norm_bound=norm_bound, **more)) <= 2 * norm_bound * (1 + 1e-12)


@given(
    neighbours(),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    st.sampled_from(["normalize", "clip"]),
    st.sampled_from([0.0, 1e-4]),
    st.sampled_from([None, 1]),
)
@example(worst_neighbours(changed=1), C, "normalize", 0.0, None)
@example(worst_neighbours(changed=1), C, "clip", 0.0, None)
def test_one_teacher_moves_each_row_of_the_sum_by_two_norm_bounds_at_most(
    pair: Neighbours, norm_bound: float, bounding: str, stability: float, top_k: int | None
) -> None:
    assert bounded(*pair, norm_bound=norm_bound, bounding=bounding, stability=stability, top_k=top_k)


def test_the_bound_is_reached_and_two_teachers_break_it() -> None:
    """Overlapping shards would: one record would be in two of them."""
    assert max(moved(*worst_neighbours(changed=1))) == pytest.approx(2 * C, rel=1e-6)
    assert max(moved(*worst_neighbours(changed=2))) == pytest.approx(4 * C, rel=1e-6)
    assert not bounded(*worst_neighbours(changed=2))


@pytest.mark.parametrize("teachers", [250, 2000])
def test_the_bound_holds_among_many_teachers(teachers: int) -> None:
    first = torch.randn(teachers, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    second = first.clone()
    second[17] = -1e9 * first[17]
    assert bounded(first, second, stability=0.0)
    second[18] = -1e9 * first[18]
    assert not bounded(first, second, stability=0.0)


def found_by_search(check: Callable[[Neighbours], None]) -> bool:
    """Whether hypothesis finds neighbours on which the check fails; the smallest ones are of no interest."""
    try:
        settings(phases=[Phase.generate], print_blob=False)(given(neighbours())(check))()
    except AssertionError:
        return True
    return False


def test_the_search_finds_rows_that_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(pair: Neighbours) -> None:
        assert bounded(*pair)

    assert not found_by_search(check)

    def unbounded(rows: torch.Tensor, *, norm_bound: float, stability: float) -> torch.Tensor:
        return norm_bound * rows

    monkeypatch.setattr(privacy.mechanisms.gradient_bounding, "normalize_per_sample", unbounded)
    assert found_by_search(check)


def test_the_search_finds_rows_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(pair: Neighbours) -> None:
        assert bounded(*pair, norm_bound=7.3)

    assert not found_by_search(check)
    monkeypatch.setattr(privacy.annotators.gradient, "zero_non_finite_samples", lambda rows: rows.double())
    assert found_by_search(check)


class MeanFirst(GradientAnnotator):
    """The mutant that bounds the teachers' mean in place of each teacher's row."""

    def _bounded(self, gradients: torch.Tensor) -> torch.Tensor:
        teachers = gradients.unflatten(0, (-1, self.shape[0]))
        return super()._bounded(teachers.mean(dim=0)).repeat(len(teachers), 1)


def test_rows_are_bounded_before_they_are_added_up() -> None:
    """Of the mean, one loud teacher decides alone where it points."""
    first, second = worst_neighbours(changed=1)
    first[0], second[0] = 1e3 * first[0], 1e3 * second[0]
    assert bounded(first, second)
    assert not bounded(first, second, kind=MeanFirst)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_teacher_is_left_out_of_the_sum_and_counted_in_the_mean(broken: float) -> None:
    """Dividing by those that work would tell how many do."""
    answers = gradients()
    answers[3] = broken
    zeros = answers.clone()
    zeros[3] = 0.0
    one, other = (annotator().annotate(rows) for rows in (answers, zeros))
    assert torch.isfinite(one).all() and torch.equal(one, other)


@pytest.mark.parametrize("teachers", [1, N, 100])
def test_the_charge_is_the_sensitivity_over_the_noise_that_is_there(teachers: int) -> None:
    """One teacher turns every row round; measured on what is released, and compared with the charge."""
    first = torch.zeros(teachers, B, CLASSES, dtype=torch.float64)
    first[..., 0] = 1e6
    silent = [annotator(noise=Seeded(factor=0.0)) for _ in range(3)]
    at_first = silent[0].annotate(first)
    first[0] *= -1
    distance = float((at_first - silent[1].annotate(first)).norm())
    mu = annotator().charge.release.gaussian_mu
    assert mu is not None
    assert distance / (SIGMA * C / teachers) == pytest.approx(mu, rel=1e-6)
    if teachers > 1:
        first[1] *= -1
        assert float((at_first - silent[2].annotate(first)).norm()) / (SIGMA * C / teachers) > 1.9 * mu


@pytest.mark.parametrize(("batch_size", "sigma"), [(1, 5.0), (16, 20.0), (256, 100.0)])
def test_the_charge_has_both_figures(batch_size: int, sigma: float) -> None:
    made = annotator(batch_size=batch_size, noise_multiplier=sigma)
    charge = made.charge
    assert charge.release == Gaussian(mu=math.sqrt(batch_size) * 2 / sigma)
    assert charge.claim is not None and charge.claim.source == "DPDFD Theorem 3"
    assert charge.claim.slope == dpdfd_rdp_slope(C, CLASSES, batch_size, sigma)  # type: ignore[attr-defined]
    assert charge.queries == batch_size
    single = annotator(release="per_sample", batch_size=batch_size, noise_multiplier=sigma).charge
    assert charge.claim == single.claim
    mu, single_mu = charge.release.gaussian_mu, single.release.gaussian_mu
    assert mu is not None and single_mu == pytest.approx(batch_size * mu)


@pytest.mark.parametrize("teachers", [1, N, 250])
def test_what_is_charged_does_not_depend_on_the_number_of_teachers(teachers: int) -> None:
    """It is the noise that does."""
    made = annotator()
    made.annotate(gradients(teachers))
    assert made.account.counts() == {annotator().charge: 1}
    assert made.account.epsilon() == compose({Gaussian(2 * math.sqrt(B) / SIGMA): 1}, 1e-5).epsilon
    assert made.account.epsilon_published() == pytest.approx(published_dpdfd_epsilon(C, CLASSES, B, 1, SIGMA, 1e-5))


def test_the_record_level_figure_of_the_papers_setting() -> None:
    made = annotator(batch_size=256, noise_multiplier=100.0)
    assert made.account.epsilon(counts={made.charge: 200}) == pytest.approx(28.838725, abs=5e-6)
    assert made.account.epsilon_published(counts={made.charge: 200}) == pytest.approx(0.0456, abs=5e-5)


@pytest.mark.parametrize(
    "shape",
    [
        (B, CLASSES),
        (0, B, CLASSES),
        (N, B - 1, CLASSES),
        (N, B, CLASSES + 1),
        (B, N, CLASSES),
        (N * B, CLASSES),
        (1, N, B, CLASSES),
        (CLASSES,),
        (),
    ],
)
def test_another_shape_is_refused_and_not_charged(shape: tuple[int, ...]) -> None:
    made = annotator()
    with pytest.raises(ValueError, match=r"shape \(n, B, c\) with \(B, c\) = \(16, 10\) that is charged for, got"):
        made.annotate(torch.zeros(shape))
    assert not made.account.counts()
    assert made.account.epsilon() == 0.0


@pytest.mark.parametrize("release", ["per_sample", "batch_mean"])
def test_a_release_of_one_teacher_refuses_many(release: str) -> None:
    made = annotator(release=release)
    with pytest.raises(ValueError, match=r"shape \(B, c\) = \(16, 10\)"):
        made.annotate(gradients())
    assert not made.account.counts()


def test_a_refused_step_is_neither_charged_nor_released() -> None:
    probe = annotator()
    made = annotator(target_epsilon=probe.account.epsilon_after(probe.charge, 2))
    for _ in range(2):
        made.annotate(gradients())
    with pytest.raises(BudgetExceeded):
        made.annotate(gradients())
    assert made.account.counts() == {made.charge: 2}


def test_the_guarantee_is_about_a_record_of_one_teacher() -> None:
    many, one = annotator(), annotator(release="per_sample")
    many.annotate(gradients())
    one.annotate(gradients()[0])
    pages = {}
    for made in (many, one):
        page = made.guarantee(artefacts=["student"], planned=plan_of(made, 1))
        pages[made.release] = (page, page.to_markdown())
    guarantee, text = pages["ensemble"]
    assert guarantee.unit == "one training record of one teacher"
    assert guarantee.epsilon == many.account.epsilon() < math.inf
    for part in (
        "the sum over all teachers with Gaussian noise of standard deviation sigma*C = 20*C per coordinate",
        "one record moves one gradient on each image by up to 2C",
        "a record's id alone decides its shard",
        "release=ensemble",
    ):
        assert part in text
        assert part not in pages["per_sample"][1]
    assert pages["per_sample"][0].unit == "one training record of the teacher"
