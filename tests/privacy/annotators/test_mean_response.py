"""Mean answers: what one teacher, which is all that a record changes, can move, the noise on it, and its price."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from scipy import stats
from support.neighbours import Neighbours, neighbours, worst_neighbours
from support.plans import plan_of
from support.seeded import Seeded
from support.short_names import budgeted

import privacy.annotators.mean_response
from privacy import BudgetExceeded, Gaussian, NoiseSource, ReproducibleNoise, compose
from privacy.annotators.mean_response import MeanResponseAnnotator

B, CLASSES, SIGMA, N = 16, 10, 20.0, 7


def annotator(
    *,
    batch_size: int = B,
    num_classes: int = CLASSES,
    kind: type[MeanResponseAnnotator] = MeanResponseAnnotator,
    ledger: Path | None = None,
    **more: Any,
) -> MeanResponseAnnotator:
    made = kind(**budgeted({"noise_multiplier": SIGMA, "noise": Seeded(), **more}))
    made.bind(batch_size=batch_size, num_classes=num_classes)
    made.open(private_data="digits/train", ledger=ledger)
    return made


def answers(teachers: int = N, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(teachers, B, CLASSES, generator=torch.Generator().manual_seed(seed))
    return drawn.double()


#: Logits of one teacher whose sum is beyond all numbers, (1, 1, 3).
HUGE = torch.full((1, 1, 3), 1.7e308, dtype=torch.float64)


def moved(first: torch.Tensor, second: torch.Tensor, **more: Any) -> list[float]:
    """How far each image's row of the sum moves between two ensembles, noise left out."""
    one, other = (
        annotator(batch_size=rows.shape[1], num_classes=rows.shape[2], noise=Seeded(factor=0.0), **more).annotate(rows)
        for rows in (first, second)
    )
    assert torch.isfinite(one).all() and torch.isfinite(other).all()
    return [len(first) * math.hypot(*row) for row in (one - other).tolist()]


def bounded(first: torch.Tensor, second: torch.Tensor, **more: Any) -> bool:
    return max(moved(first, second, **more)) <= 2 * (1 + 1e-12)


@given(neighbours())
@example(worst_neighbours(changed=1))
@example((HUGE.repeat(2, 1, 1), torch.cat([HUGE * torch.tensor([-1.0, 0.0, 1.0]), HUGE])))
def test_one_teacher_moves_each_image_of_the_sum_by_two_at_most(pair: Neighbours) -> None:
    assert bounded(*pair)


def test_the_bound_is_reached_and_two_teachers_break_it() -> None:
    """Overlapping shards would: one record would be in two of them."""
    assert max(moved(*worst_neighbours(changed=1))) == pytest.approx(2)
    assert max(moved(*worst_neighbours(changed=2))) == pytest.approx(4)
    assert not bounded(*worst_neighbours(changed=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_bound_holds_among_many_teachers_in_any_precision(dtype: torch.dtype) -> None:
    first = torch.randn(500, 5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    second = first.clone()
    second[17] = -9 * first[17]
    # What is released is rounded to the precision of the answers: that is post-processing, and left out here.
    assert bounded(first.double(), second.double())
    silent = [annotator(batch_size=5, num_classes=3, noise=Seeded(factor=0.0)) for _ in range(2)]
    released = silent[0].annotate(first)
    assert released.dtype == dtype and released.shape == (5, 3) and not released.requires_grad
    assert torch.equal(released, silent[1].annotate(first.double()).to(dtype))
    second[18] = -9 * first[18]
    assert not bounded(first.double(), second.double())


def found_by_search(check: Callable[[Neighbours], None]) -> bool:
    """Whether hypothesis finds neighbours on which the check fails; the smallest ones are of no interest."""
    try:
        settings(phases=[Phase.generate], print_blob=False)(given(neighbours())(check))()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("broken", ["directions are not normalised", "rows that are not finite are kept"])
def test_the_search_finds_what_is_not_bounded(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def check(pair: Neighbours) -> None:
        assert bounded(*pair)

    assert not found_by_search(check)
    module = privacy.annotators.mean_response
    if broken.startswith("directions"):
        monkeypatch.setattr(module, "normalize_per_sample", lambda rows, **_: torch.nan_to_num(rows))
    else:
        monkeypatch.setattr(module, "zero_non_finite_samples", lambda rows: rows.double())
        # Norms alone, without the guard that turns what is not a number into zeros.
        monkeypatch.setattr(
            module, "normalize_per_sample", lambda rows, **_: rows / rows.norm(dim=1, keepdim=True).add(1e-9)
        )
    assert found_by_search(check)


class MeanFirst(MeanResponseAnnotator):
    """The mutant that bounds the teachers' mean in place of each teacher's row."""

    def annotate(self, logits: torch.Tensor) -> torch.Tensor:
        return super().annotate(logits.mean(dim=0, keepdim=True).expand_as(logits))


def test_rows_are_bounded_before_they_are_added_up() -> None:
    """Of the mean, one loud teacher decides alone where it points."""
    first, second = worst_neighbours(changed=1)
    first[0], second[0] = 1e3 * first[0], 1e3 * second[0]
    assert bounded(first, second)
    assert not bounded(first, second, kind=MeanFirst)


def test_only_directions_count() -> None:
    """Neither what is added to all logits of a row, which no softmax sees, nor how large they are."""
    quiet = {"noise": Seeded(factor=0.0)}
    plain = annotator(**quiet).annotate(answers())
    centred = answers() - answers().mean(dim=2, keepdim=True)
    assert torch.allclose(plain, (centred / centred.norm(dim=2, keepdim=True)).mean(dim=0))
    for same in (answers() + 100 * answers(seed=1)[:, :, :1], 1e5 * answers()):
        assert torch.allclose(annotator(**quiet).annotate(same), plain)
    assert not torch.allclose(annotator(**quiet).annotate(-answers()), plain)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_broken_teacher_is_left_out_of_the_sum_and_counted_in_the_mean(value: float) -> None:
    """Dividing by those that work would tell how many do."""
    given = answers()
    given[3] = value
    zeros = answers()
    zeros[3] = 0.0
    one, other = (annotator().annotate(rows) for rows in (given, zeros))
    assert torch.isfinite(one).all() and torch.equal(one, other)


def added(made: MeanResponseAnnotator, *, teachers: int = N, calls: int = 60) -> torch.Tensor:
    """What was added to the mean of the directions, (calls, B, c)."""
    rows = answers(teachers)
    centred = rows - rows.mean(dim=2, keepdim=True)
    mean = (centred / centred.norm(dim=2, keepdim=True)).mean(dim=0)
    return torch.stack([made.annotate(rows) - mean for _ in range(calls)])


def has_deviation(draws: torch.Tensor, deviation: float) -> bool:
    """Two-sided chi-square test of the deviation; mean zero is part of it. Wrong once in 10⁶ for the right one."""
    statistic = float((draws / deviation).square().sum())
    return 2 * min(stats.chi2.cdf(statistic, draws.numel()), stats.chi2.sf(statistic, draws.numel())) > 1e-6


@pytest.mark.parametrize("teachers", [2, N, 100])
def test_the_noise_is_the_sums_divided_by_the_number_of_teachers(teachers: int) -> None:
    made = annotator()
    draws = added(made, teachers=teachers)
    right = SIGMA / teachers
    assert made.std(teachers) == pytest.approx(right)
    assert has_deviation(draws, right)
    assert stats.kstest(draws.flatten().numpy() / right, "norm").pvalue > 1e-6
    # Not divided; noise on each teacher's answers by itself; and the source's own noise, changed a little.
    for wrong in (SIGMA, SIGMA / math.sqrt(teachers), right * 0.95, right * 1.05):
        assert not has_deviation(draws, wrong)
    assert not has_deviation(added(annotator(noise=Seeded(factor=0.95)), teachers=teachers), right)


@pytest.mark.parametrize("noise", [None, Seeded()])
def test_each_image_and_each_call_has_noise_of_its_own(noise: NoiseSource | None) -> None:
    draws = added(annotator(noise=noise), calls=100)
    limit = 6.5 / math.sqrt(draws[:, 0].numel())  # for 16 pairs at once
    pairs = [(draws[:, 0], draws[:, row]) for row in range(1, B)] + [(draws[1:], draws[:-1])]
    for first, second in pairs:
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])) < limit


@pytest.mark.parametrize(("batch_size", "sigma"), [(1, 5.0), (16, 20.0), (256, 45.25)])
def test_the_charge(batch_size: int, sigma: float) -> None:
    charge = annotator(batch_size=batch_size, noise_multiplier=sigma).charge
    assert charge.release == Gaussian(mu=2 * math.sqrt(batch_size) / sigma)
    assert charge.queries == batch_size and charge.claim is None


@pytest.mark.parametrize("teachers", [1, N, 100])
def test_the_charge_is_the_sensitivity_over_the_noise_that_is_there(teachers: int) -> None:
    """One teacher says the opposite on every image; measured on what is released, and compared with the charge."""
    first = torch.zeros(teachers, B, CLASSES, dtype=torch.float64)
    first[..., 0] = 1.0
    silent = [annotator(noise=Seeded(factor=0.0)) for _ in range(3)]
    at_first = silent[0].annotate(first)
    first[0] *= -1
    distance = float((at_first - silent[1].annotate(first)).norm())
    noise = float(added(annotator(), teachers=teachers).std())
    mu = annotator().charge.release.gaussian_mu
    assert mu is not None
    assert distance / noise == pytest.approx(mu, rel=0.03)
    if teachers > 1:
        first[1] *= -1
        assert float((at_first - silent[2].annotate(first)).norm()) / noise > 1.9 * mu


def test_calls_add_up_whatever_the_number_of_teachers() -> None:
    made = annotator()
    for teachers in (1, N, 250):
        made.annotate(answers(teachers))
    assert made.account.counts() == {made.charge: 3} and made.account.queries() == 3 * B
    assert made.account.epsilon() == pytest.approx(compose({Gaussian(2 * math.sqrt(3 * B) / SIGMA): 1}, 1e-5).epsilon)
    assert made.account.epsilon_published() == math.inf


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
def test_another_shape_is_refused_and_not_charged(tmp_path: Path, shape: tuple[int, ...]) -> None:
    made = annotator(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match=r"shape \(n, B, c\) with \(B, c\) = \(16, 10\) that is charged for, got"):
        made.annotate(torch.zeros(shape))
    assert not made.account.counts() and made.account.epsilon() == 0.0


class Counting(Seeded):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def gaussian(self, shape: Any) -> torch.Tensor:
        self.asked += 1
        return super().gaussian(shape)


class ReleasesFirst(MeanResponseAnnotator):
    """The mutant that draws before it asks whether it may."""

    def annotate(self, logits: torch.Tensor) -> torch.Tensor:
        self.noise.gaussian(self.shape)
        return super().annotate(logits)


@pytest.mark.parametrize("kind", [MeanResponseAnnotator, ReleasesFirst])
def test_a_call_beyond_the_budget_is_neither_charged_nor_drawn(kind: type[MeanResponseAnnotator]) -> None:
    probe, noise = annotator(), Counting()
    made = annotator(target_epsilon=probe.account.epsilon_after(probe.charge, 2), noise=noise, kind=kind)
    assert made.affordable(limit=10) == 2
    for _ in range(2):
        made.annotate(answers())
    drawn = noise.asked
    with pytest.raises(BudgetExceeded):
        made.annotate(answers())
    assert made.account.counts() == {made.charge: 2}
    assert (noise.asked == drawn) is (kind is MeanResponseAnnotator)


def test_the_guarantee_is_about_a_record_of_one_teacher() -> None:
    made = annotator()
    made.annotate(answers())
    guarantee = made.guarantee(artefacts=["student"], planned=plan_of(made, 1))
    assert guarantee.unit == "one training record of one teacher"
    assert guarantee.epsilon == made.account.epsilon() < math.inf
    page = guarantee.to_markdown()
    for part in (
        "one training record of one teacher",
        "the mean over teachers on disjoint shards",
        "sigma=20 on the sum",
        "B=16 images in a call",
        "one record moves one teacher's direction on each image by up to 2",
        "a record's id alone decides its shard",
        "floating-point",
    ):
        assert part in page
    assert "VOID" not in page


def test_noise_that_can_be_drawn_again_bounds_nothing() -> None:
    made = annotator(noise=ReproducibleNoise(seed=0))
    made.annotate(answers())
    assert made.account.epsilon() == math.inf and made.account.queries() == B
    assert any("drawn again" in reason for reason in made.account.unbounded())
    page = made.guarantee(artefacts=["student"], planned=plan_of(made, 1))
    assert page.epsilon == math.inf and "VOID" in page.to_markdown()
    mutant = annotator(noise=None)
    mutant.annotate(answers())
    assert mutant.account.epsilon() < math.inf and not mutant.account.unbounded()


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, 1e-31, 1e31, math.inf, math.nan])
def test_noise_without_a_meaning_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        MeanResponseAnnotator(noise_multiplier=noise_multiplier)
