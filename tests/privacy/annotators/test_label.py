"""Labels through the annotator: released with the probabilities that are charged for, and charged before."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from support.plans import plan_of
from support.short_names import budgeted

from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose
from privacy.annotators import Annotator, GradientAnnotator
from privacy.annotators.label import LabelAnnotator
from privacy.events import Gaussian, RandomizedResponse, Repeated, Unbounded
from privacy.identity import Training
from privacy.mechanisms.randomized_response import top_k_candidates
from privacy.numerics.gaussian import gaussian_epsilon

B, CLASSES = 4000, 10


def annotator(*, rows: int = B, paper: str = "DPSD", **settings: Any) -> LabelAnnotator:
    made = LabelAnnotator(**budgeted(settings))
    made.bind(batch_size=rows, num_classes=CLASSES, paper=paper)
    made.open(private_data="digits/train", ledger=settings.get("ledger"))
    return made


def teacher(rows: int = B) -> torch.Tensor:
    return torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(1))


def sets(k: int, rows: int = B) -> torch.Tensor:
    return top_k_candidates(torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(2)), k=k)


def answers_fit(answers: torch.Tensor, candidates: torch.Tensor, *, epsilon: float) -> bool:
    """Chi-square over: kept, each rank among the other candidates; outside of the set, each rank in it."""
    labels = teacher(len(answers)).argmax(dim=1)
    inside = candidates.gather(1, labels[:, None])[:, 0]
    assert bool(candidates.gather(1, answers[:, None]).all())
    k = int(candidates[0].sum())
    rank = (candidates.long().cumsum(dim=1) - 1).gather(1, answers[:, None])[:, 0]
    own = (candidates.long().cumsum(dim=1) - 1).gather(1, labels[:, None])[:, 0]
    shifted = (rank - own)[inside] % k  # 0: kept
    p = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    values = [
        stats.chisquare(
            torch.bincount(shifted, minlength=k).numpy(),
            [float(inside.sum()) * (p if i == 0 else (1 - p) / (k - 1)) for i in range(k)],
        ).pvalue
    ]
    if not bool(inside.all()):
        values.append(stats.chisquare(torch.bincount(rank[~inside], minlength=k).numpy()).pvalue)
    return min(values) > 1e-8


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_answers_have_the_frequencies_that_are_charged_for(k: int, epsilon: float) -> None:
    """Accepted as they are; answers given at 3/2 of ε are refused."""
    candidates = sets(k, 100_000)
    right = annotator(rows=100_000, epsilon=epsilon).annotate(teacher(100_000), candidates)
    assert answers_fit(right, candidates, epsilon=epsilon)
    for factor in (2 / 3, 3 / 2):
        wrong = annotator(rows=100_000, epsilon=factor * epsilon).annotate(teacher(100_000), candidates)
        assert not answers_fit(wrong, candidates, epsilon=epsilon)


def test_a_batch_is_charged_as_that_many_answers() -> None:
    made = annotator(rows=100, epsilon=1.0, smallest=3)
    made.annotate(teacher(100), sets(3, 100), size=3)
    assert made.account.epsilon() == pytest.approx(67.9245, abs=5e-5)
    assert made.account.epsilon_published() == 1.0
    assert made.account.queries() == 100
    assert made.calls_made() == 1


def test_sizes_fixed_beforehand_are_charged_for_themselves_and_others_for_the_smallest() -> None:
    fixed = annotator(rows=50, smallest=2)
    fixed.annotate(teacher(50), sets(10, 50), size=10)
    fixed.annotate(teacher(50), sets(2, 50), size=2)
    assert fixed.account.epsilon() == pytest.approx(58.7973, abs=5e-5)
    varying = annotator(rows=50, smallest=2)
    for k in (10, 2):
        varying.annotate(teacher(50), sets(k, 50))
    assert varying.account.epsilon() == pytest.approx(79.8413, abs=5e-5)
    assert compose({Repeated(RandomizedResponse(1.0, 2), 50): 2}, 1e-5).epsilon == varying.account.epsilon()


@pytest.mark.parametrize(("k", "size"), [(2, None), (2, 3), (4, 3), (2, 2)])
def test_sets_that_are_not_what_is_charged_for_are_refused(k: int, size: int | None) -> None:
    made = annotator(smallest=3)
    with pytest.raises(ValueError, match="candidates must hold"):
        made.annotate(teacher(), sets(k), size=size)
    assert not made.account.counts()


def test_another_shape_is_refused_and_not_charged() -> None:
    made = annotator()
    for logits, candidates in ((teacher(5), sets(3)), (teacher(), sets(3, 5))):
        with pytest.raises(ValueError, match=r"shape \(B, c\) = \(4000, 10\)"):
            made.annotate(logits, candidates)
    assert not made.account.counts()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_teacher_that_fails_is_charged_and_answers_all_the_same(value: float) -> None:
    made = annotator()
    answers = made.annotate(torch.full((B, CLASSES), value), sets(3))
    assert bool(sets(3).gather(1, answers[:, None]).all())
    assert made.calls_made() == 1


def test_the_published_figure_knows_no_number_of_answers() -> None:
    made = annotator(epsilon=2.0, target_epsilon=2.0, accounting="published")
    assert made.affordable(limit=10**6) == 10**6
    for _ in range(3):
        made.annotate(teacher(), sets(10))
    assert made.account.epsilon_published() == 2.0 < made.account.epsilon()


@pytest.mark.parametrize("kind", [GradientAnnotator, LabelAnnotator])
def test_what_is_revealed_is_charged_once_and_bounded_by_nothing(kind: type[Annotator]) -> None:
    made = kind()
    made.bind(batch_size=8, num_classes=CLASSES, paper="DPSD")
    made.open(private_data="digits/train")
    before = made.account.epsilon_published(counts={made.charge: 5})
    for _ in range(3):
        made.charge_nonprivate_access("the generator was trained against the teacher")
    assert sum(made.account.counts().values()) == 1
    assert made.calls_made() == 0
    assert made.account.epsilon() == math.inf
    assert made.account.unbounded() == ["the generator was trained against the teacher"]
    # DPSD counts it for nothing.
    assert made.account.epsilon_published(counts={**made.account.counts(), made.charge: 5}) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": math.inf}, "epsilon must be above 0"),
        ({"smallest": 1}, "smallest must be"),
        ({"smallest": 11}, "smallest must be at most the number of classes 10"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        annotator(**settings)


# --- the teacher's output in place of its class (LabelDP Algorithm 1 line 9, to the letter) ---


def released_by(labels: Any, given: torch.Tensor, *, calls: int) -> set[tuple[float, ...]]:
    made = annotator(rows=1, paper="LabelDP", labels=labels)
    return {
        tuple(made.annotate(given, torch.ones(1, CLASSES, dtype=torch.bool)).flatten().tolist()) for _ in range(calls)
    }


def test_a_soft_label_tells_two_teachers_of_one_class_apart_and_a_hard_one_does_not() -> None:
    """Why no ε bounds it: what one of them may release, the other never does. A kept class has probability 0.23."""
    first = torch.tensor([[2.0] + [0.0] * 9])
    second = torch.tensor([[2.1] + [0.0] * 9])
    soft, other = (released_by("soft", logits, calls=200) for logits in (first, second))
    told = tuple(first.softmax(1)[0].tolist())
    assert told in soft and told not in other
    assert released_by("hard", first, calls=400) == released_by("hard", second, calls=400)


def test_soft_labels_are_the_teachers_probabilities_where_its_class_is_kept() -> None:
    made = annotator(rows=100, paper="LabelDP", labels="soft", epsilon=3.0)
    logits, candidates = teacher(100), sets(4, 100)
    logits[7] = math.nan
    out = made.annotate(logits, candidates)
    assert out.shape == (100, CLASSES) and out.dtype == torch.float32
    soft = (out > 0).sum(dim=1) > 1
    assert 0 < int(soft.sum()) < 100 and not bool(soft[7])
    assert torch.equal(out[soft], logits[soft].softmax(dim=1))
    assert bool(candidates.gather(1, out.argmax(dim=1, keepdim=True)).all())
    assert torch.equal(out[~soft].sum(dim=1), torch.ones(int((~soft).sum())))


def test_soft_labels_of_a_teacher_by_dp_sgd_cost_what_its_training_does() -> None:
    made = LabelAnnotator(labels="soft")
    made.bind(batch_size=4, num_classes=CLASSES, paper="LabelDP")
    training = Training("0" * 32, kind="DPSGDTeacher", releases={Gaussian(0.5): 1})
    made.open(private_data="digits/train", training=training)
    made.annotate(teacher(4), sets(3, 4))
    assert made.account.epsilon() == pytest.approx(gaussian_epsilon(0.5, 1e-5))
    assert made.account.epsilon_published() == math.inf


def test_labels_that_were_charged_as_classes_are_described_as_classes() -> None:
    made = annotator(rows=4, paper="LabelDP")
    made.annotate(teacher(4), sets(3, 4))
    made.labels = "soft"
    assert "randomized response over candidates" in made.description().mechanism
    made.annotate(teacher(4), sets(3, 4))
    assert "1 call: the teacher's class" in made.description().mechanism
    assert "1 call: the teacher's probabilities" in made.description().mechanism


def test_nothing_bounds_soft_labels_and_no_theorem_covers_them() -> None:
    """The negative control: charged as classes, they would have a finite ε."""
    soft, hard = (annotator(rows=100, paper="LabelDP", labels=labels) for labels in ("soft", "hard"))
    for made in (soft, hard):
        made.annotate(teacher(100), sets(3, 100))
    assert soft.account.epsilon() == soft.account.epsilon_published() == math.inf
    assert hard.account.epsilon() < math.inf and hard.account.epsilon_published() == 1.0
    assert isinstance(soft.charge.release, Unbounded) and soft.calls_made() == 1
    page = soft.guarantee(artefacts=["student"], planned=plan_of(soft, 1))
    assert page.epsilon == math.inf and "probabilities" in page.to_markdown()
    refused = annotator(rows=100, paper="LabelDP", labels="soft", target_epsilon=1e9)
    with pytest.raises(BudgetExceeded):
        refused.annotate(teacher(100), sets(3, 100))
    with pytest.raises(ValueError, match="labels must be hard or soft, got 'logits'"):
        LabelAnnotator(labels="logits")  # type: ignore[arg-type]
