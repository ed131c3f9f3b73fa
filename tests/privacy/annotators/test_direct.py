"""Direct training: what a label can move, what that costs by the code and by closed forms, and what is refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from support.plans import plan_of
from support.seeded import Seeded
from support.short_names import budgeted
from torch.nn import functional as F

from privacy import (
    BudgetExceeded,
    Gaussian,
    LabelOnly,
    RandomizedResponse,
    ReproducibleNoise,
    SampledGaussian,
    Unbounded,
    compose,
)
from privacy.annotators import DirectGradientAnnotator, DirectLabelAnnotator
from privacy.neighbours import Relation, Unit

DELTA = 1e-5
OF_LABEL: dict[str, Any] = {"unit": Unit.LABEL, "relation": Relation.REPLACE_ONE}


def gradients_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.softmax(dim=1) - F.one_hot(labels, logits.shape[1])


def of_gradients(*, batch: int = 4, rate: float = 0.01, **settings: Any) -> DirectGradientAnnotator:
    annotator = DirectGradientAnnotator(**budgeted({"release": "per_sample_full", "noise_multiplier": 2.0, **settings}))
    annotator.bind(batch_size=batch, num_classes=10, paper="DPDFD")
    annotator.bind_sampling(sample_rate=rate)
    annotator.open(private_data="digits/train")
    return annotator


def of_labels(*, records: int = 100, classes: int = 10, **settings: Any) -> DirectLabelAnnotator:
    annotator = DirectLabelAnnotator(**budgeted(settings))
    annotator.bind(batch_size=records, num_classes=classes, paper="DPSD")
    annotator.open(private_data="digits/train")
    return annotator


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("release", ["per_sample", "per_sample_full", "batch_mean", "batch_mean_rows"])
@pytest.mark.parametrize("bounding", ["normalize", "clip"])
def test_a_label_moves_what_is_noised_by_no_more_than_it_is_charged_for(release: str, bounding: str) -> None:
    annotator = of_gradients(release=release, bounding=bounding, norm_bound=0.3, noise=Seeded(factor=0.0))
    torch.manual_seed(0)
    logits = torch.randn(4, 10) * 5
    # The worst case: two classes of probability 1/2, whose gradients are opposite.
    logits[0] = torch.tensor([20.0, 20.0, *[-20.0] * 8])
    labels = torch.tensor([0, 3, 4, 5])

    def noised(labels: torch.Tensor) -> torch.Tensor:
        released = annotator.annotate(gradients_of(logits, labels), torch.arange(4)).double()
        # The mean of a batch is what noise was added to, divided by the number of rows.
        return released[0] * 4 if release.startswith("batch_mean") else released

    furthest = max(float((noised(labels) - noised(torch.tensor([other, 3, 4, 5]))).norm()) for other in range(1, 10))
    std = annotator.mechanism.noise_std(4, 2.0) * 0.3
    if release == "batch_mean_rows":
        std *= math.sqrt(4)  # of the sum of four rows
    charged = annotator.label_mu * std
    assert furthest <= charged * (1 + 1e-5)
    if release != "batch_mean_rows":  # charged as if a batch had one row
        # Negative control: a charge for a bound of C and not of 2C would be noticed.
        assert furthest > 0.99 * charged


def test_other_rows_do_not_move_and_a_common_norm_would_move_them() -> None:
    annotator = of_gradients(noise=Seeded(factor=0.0))
    torch.manual_seed(0)
    logits = torch.randn(4, 10)
    first, second = (
        annotator.annotate(gradients_of(logits, torch.tensor([label, 1, 2, 3])), torch.arange(4)) for label in (0, 9)
    )
    assert torch.equal(first[1:], second[1:])
    assert not torch.equal(first[0], second[0])
    with pytest.raises(ValueError, match="normalize_batch: one label would change every row"):
        of_gradients(bounding="normalize_batch")
    # Which is so: by their common norm the other rows move.
    groups = [gradients_of(logits, torch.tensor([label, 1, 2, 3])).flatten() for label in (0, 9)]
    assert not torch.allclose(*((rows / rows.norm())[10:] for rows in groups), rtol=1e-6)


@pytest.mark.parametrize(("steps", "expected"), [(1000, 23.391), (1, 3.1387)])
def test_poisson_steps_cost_what_the_closed_form_says(steps: int, expected: float) -> None:
    annotator = of_gradients(batch=10)
    assert annotator.label_mu == 1.0
    assert annotator.epsilon_label(plan_of(annotator, steps)) == pytest.approx(expected, abs=1e-3)
    assert annotator.covered_epsilon(plan_of(annotator, steps)) == math.inf


@pytest.mark.parametrize("release", ["per_sample", "per_sample_full", "batch_mean", "batch_mean_rows"])
def test_an_empty_poisson_batch_is_charged_and_gives_nothing(release: str) -> None:
    annotator = of_gradients(release=release)
    assert annotator.annotate(torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64)).shape == (0, 10)
    assert sum(annotator.account.counts().values()) == 1


def test_coins_or_noise_with_a_seed_void_both_statements() -> None:
    annotator = of_gradients()
    annotator.bind_sampling(sample_rate=0.01, secure=False)
    assert annotator.epsilon_label(plan_of(annotator, 1)) == math.inf
    for settings in ({"noise": ReproducibleNoise(seed=1)}, {"noise_multiplier": 0.0}):
        annotator = of_gradients(**settings)
        assert annotator.epsilon_label(plan_of(annotator, 1)) == math.inf


def test_the_published_figure_is_that_of_the_theorem_and_stands_beside_both() -> None:
    annotator = of_gradients(batch=256, rate=0.256, norm_bound=1e-3, noise_multiplier=100.0)
    for _ in range(200):
        annotator.annotate(torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64))
    assert annotator.account.epsilon_published() == pytest.approx(0.0456, abs=1e-4)
    guarantee = annotator.guarantee(artefacts=["model"], planned=plan_of(annotator, 200))
    assert guarantee.epsilon == math.inf
    assert guarantee.labels is not None
    assert guarantee.labels.unit == "the label of one training record"
    assert guarantee.labels.epsilon == annotator.epsilon_label(plan_of(annotator, 200))
    written = guarantee.to_dict()
    assert written["guarantee"]["epsilon"] == "inf"
    assert written["label_guarantee"]["unit"] == "the label of one training record"
    assert "Nothing bounds a record" in guarantee.to_markdown()
    assert any("private images" in text for text in guarantee.assumptions)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"release": "ensemble"}, "release must not be ensemble"),
        ({"target_epsilon": 1.0}, "target_epsilon=1 needs accounting='published'"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        of_gradients(**settings)


def test_bad_calls_are_refused_before_anything_is_charged() -> None:
    annotator = of_gradients()
    with pytest.raises(ValueError, match="distinct"):
        annotator.annotate(torch.randn(2, 10), numbers(3, 3))
    with pytest.raises(ValueError, match="gradients must be"):
        annotator.annotate(torch.randn(2, 9), numbers(3, 4))
    with pytest.raises(ValueError, match="numbers of their records"):
        annotator.annotate(torch.randn(2, 10))
    labels = of_labels()
    with pytest.raises(ValueError, match="distinct"):
        labels.annotate(numbers(1, 1), numbers(0, 0))
    assert not annotator.account.counts() and not labels.account.counts()


def test_the_target_is_kept_before_noise_is_drawn() -> None:
    annotator = of_gradients(batch=256, rate=0.1, noise_multiplier=10.0, target_epsilon=1.0, accounting="published")
    allowed = annotator.affordable(limit=10**6)
    none = torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64)
    for _ in range(allowed):
        annotator.annotate(*none)
    with pytest.raises(BudgetExceeded, match="No record-level ε holds here at all: private images"):
        annotator.annotate(*none)
    assert sum(annotator.account.counts().values()) == allowed


# --- the label switch ---


def test_a_label_is_drawn_once_and_costs_epsilon_for_the_whole_run() -> None:
    annotator = of_labels(epsilon=1.0)
    labels, everybody = torch.randint(10, (100,)), torch.arange(100)
    first = annotator.annotate(labels, everybody)
    for _ in range(5):
        again = annotator.annotate(labels, everybody)
        assert torch.equal(again, first)
    assert annotator.account.epsilon_label() == pytest.approx(1.0, abs=1e-4)
    assert annotator.account.epsilon_label() <= 1.0
    assert annotator.account.epsilon() == math.inf
    assert annotator.account.epsilon_published() == 1.0
    assert annotator.complete


def test_labels_that_are_drawn_again_cost_again() -> None:
    annotator = of_labels(epsilon=1.0)
    labels, everybody = torch.zeros(100, dtype=torch.int64), torch.arange(100)
    annotator.annotate(labels[:50], everybody[:50])
    state, kept = annotator.account.state(), annotator.kept()
    annotator.annotate(labels[50:], everybody[50:])  # lost with a crash
    resumed = DirectLabelAnnotator(epsilon=1.0)
    resumed.bind(batch_size=100, num_classes=10, paper="DPSD")
    resumed.open(private_data="digits/train", state=state)
    assert kept is not None
    resumed.keep(kept)
    resumed.annotate(labels[:50], everybody[:50])
    assert resumed.account.epsilon_label() <= 1.0
    resumed.annotate(labels, everybody)
    twice = compose({RandomizedResponse(1.0, 10, **OF_LABEL): 2}, DELTA).epsilon
    assert resumed.account.epsilon_label() == twice > 1.5
    with pytest.raises(ValueError, match="same private records"):
        of_labels(records=99).keep(kept)


def test_labels_that_an_older_checkpoint_takes_back_cost_again_in_one_process_too() -> None:
    """A script that fits once more from an earlier file has the same object, which knows that it was charged."""
    annotator = of_labels(epsilon=1.0)
    labels, everybody = torch.zeros(100, dtype=torch.int64), torch.arange(100)
    annotator.annotate(labels[:50], everybody[:50])
    kept = annotator.kept()
    assert kept is not None
    first = annotator.annotate(labels, everybody)
    annotator.keep(kept)
    second = annotator.annotate(labels, everybody)
    assert not torch.equal(first[50:], second[50:]), "drawn twice"
    twice = compose({RandomizedResponse(1.0, 10, **OF_LABEL): 2}, DELTA).epsilon
    assert annotator.account.epsilon_label() == twice


@pytest.mark.parametrize("broken", [False, True])
def test_draws_of_a_copy_or_at_another_epsilon_cost_again(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    annotator = of_labels(epsilon=1.0)
    labels, everybody = torch.zeros(100, dtype=torch.int64), torch.arange(100)
    annotator.annotate(labels[:1], everybody[:1])
    if broken:  # as if what was charged once were charged for good
        monkeypatch.setattr(DirectLabelAnnotator, "_charge_once", lambda _: None)
    copied = copy.deepcopy(annotator)
    annotator.annotate(labels[:99], everybody[:99])
    copied.annotate(labels[:99], everybody[:99])
    annotator.epsilon = 8.0
    annotator.annotate(labels[99:], everybody[99:])
    released = compose({RandomizedResponse(8.0, 10, **OF_LABEL): 1}, DELTA).epsilon
    assert (annotator.account.epsilon_label() < released) is broken
    found = {charge.release: count for charge, count in copied.account.counts().items()}
    twice = LabelOnly(RandomizedResponse(1.0, 10, **OF_LABEL))
    assert (found[twice] < 2) is broken and not torch.equal(annotator.responses, copied.responses)  # type: ignore[arg-type]


# --- one event for both statements ---


def test_releases_about_records_hold_for_labels_where_a_lemma_says_so() -> None:
    assert Gaussian(1.0).for_labels == Gaussian(1.0)
    assert SampledGaussian(1.0, 0.1).for_labels is None  # add-or-remove does not cover replacing
    assert Unbounded("shown").for_labels == Unbounded("shown")
    assert Gaussian(1.0, unit=Unit.CLIENT).for_labels is None
