"""Direct training: what a label can move, what that costs by the code and by closed forms, and what is refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from support.seeded import Seeded
from support.sessions import asked, plan_of, session_of
from torch.nn import functional as F

from privacy import Gaussian, LabelOnly, RandomizedResponse, SampledGaussian, Unbounded, compose
from privacy.events.base import Relation, Unit
from privacy.ledger import Ledger
from privacy.mechanisms import DirectGradients, DirectLabels, Shape
from privacy.mechanisms.base import ReproducibleNoise
from privacy.mechanisms.noisy_gradients import GRADIENT_RELEASES
from privacy.session import PrivacySession

DELTA = 1e-5
OF_LABEL: dict[str, Any] = {"unit": Unit.LABEL, "relation": Relation.REPLACE_ONE}


def gradients_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.softmax(dim=1) - F.one_hot(labels, logits.shape[1])


def of_gradients(*, batch: int = 4, rate: float = 0.01, secure: bool = True, **settings: Any) -> PrivacySession:
    shape = Shape(batch, 10, "DPDFD", rate, secure)
    return session_of(DirectGradients, shape, **{"release": "per_sample_full", "noise_multiplier": 2.0, **settings})


def of_labels(**settings: Any) -> PrivacySession:
    return session_of(DirectLabels, Shape(100, 10, "DPSD"), **settings)


def label_mu(made: PrivacySession) -> float:
    assert isinstance(made.mechanism, DirectGradients)
    return made.mechanism.label_mu(made.shape.batch_size)


def epsilon_label(made: PrivacySession, *, steps: int) -> float:
    """Of a plan of so many steps."""
    made.plan = plan_of(made, steps)
    return made.account.epsilon_label(counts=made.covering())


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("release", ["per_sample", "per_sample_full", "batch_mean", "batch_mean_rows"])
@pytest.mark.parametrize("bounding", ["normalize", "clip"])
def test_a_label_moves_what_is_noised_by_no_more_than_it_is_charged_for(release: str, bounding: str) -> None:
    made = of_gradients(release=release, bounding=bounding, norm_bound=0.3, noise=Seeded(factor=0.0))
    torch.manual_seed(0)
    logits = torch.randn(4, 10) * 5
    # The worst case: two classes of probability 1/2, whose gradients are opposite.
    logits[0] = torch.tensor([20.0, 20.0, *[-20.0] * 8])
    labels = torch.tensor([0, 3, 4, 5])

    def noised(labels: torch.Tensor) -> torch.Tensor:
        released = asked(made, gradients_of(logits, labels), torch.arange(4)).double()
        # The mean of a batch is what noise was added to, divided by the number of rows.
        return released[0] * 4 if release.startswith("batch_mean") else released

    furthest = max(float((noised(labels) - noised(torch.tensor([other, 3, 4, 5]))).norm()) for other in range(1, 10))
    std = GRADIENT_RELEASES[release].noise_std(4, 2.0) * 0.3
    if release == "batch_mean_rows":
        std *= math.sqrt(4)  # of the sum of four rows
    charged = label_mu(made) * std
    assert furthest <= charged * (1 + 1e-5)
    if release != "batch_mean_rows":  # charged as if a batch had one row
        # Negative control: a charge for a bound of C and not of 2C would be noticed.
        assert furthest > 0.99 * charged


@pytest.mark.parametrize(("steps", "expected"), [(1000, 23.391), (1, 3.1387)])
def test_poisson_steps_cost_what_the_closed_form_says(steps: int, expected: float) -> None:
    made = of_gradients(batch=10)
    assert label_mu(made) == 1.0
    assert epsilon_label(made, steps=steps) == pytest.approx(expected, abs=1e-3)
    assert made.account.epsilon(counts=made.covering()) == math.inf


def test_an_empty_poisson_batch_is_charged_and_gives_nothing() -> None:
    made = of_gradients(release="batch_mean")
    assert asked(made, torch.zeros(0, 10), numbers()).shape == (0, 10)
    assert sum(made.account.counts().values()) == 1


def test_coins_or_noise_with_a_seed_void_both_statements() -> None:
    assert epsilon_label(of_gradients(), steps=1) < math.inf
    for settings in ({"secure": False}, {"noise": ReproducibleNoise(seed=1)}, {"noise_multiplier": 0.0}):
        assert epsilon_label(of_gradients(**settings), steps=1) == math.inf


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"release": "ensemble"}, "release must not be ensemble"),
        ({"bounding": "normalize_batch"}, "normalize_batch: one label would change every row"),
        ({"target_epsilon": 1.0}, "target_epsilon=1 needs accounting='published'"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        of_gradients(**settings)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_a_rate_that_is_no_probability_would_make_a_step_free(rate: float) -> None:
    with pytest.raises(ValueError, match="sample_rate must lie above 0 and be at most 1"):
        of_gradients(rate=rate)
    made = of_gradients()
    made.shape = made.shape._replace(sample_rate=rate)
    with pytest.raises(ValueError, match="sample_rate must lie above 0"):
        made.charge(made.mechanism)
    assert not made.account.counts()


@pytest.mark.parametrize(
    ("rows", "records", "message"),
    [
        (torch.randn(2, 10), (3, 3), "distinct"),
        (torch.randn(2, 9), (3, 4), "gradients must be"),
        (torch.randn(2, 10), (3,), "numbers of their records"),
    ],
)
def test_bad_calls_are_refused_before_anything_is_charged(
    rows: torch.Tensor, records: tuple[int, ...], message: str
) -> None:
    made, labels = of_gradients(), of_labels()
    with pytest.raises(ValueError, match=message):
        asked(made, rows, numbers(*records))
    for given in (LABELS[1:], torch.cat([LABELS, LABELS[:1]]), LABELS[None]):
        with pytest.raises(ValueError, match="labels must be those of all 100 records"):
            asked(labels, given)
    assert not made.account.counts() and not labels.account.counts()


# --- the label switch ---


LABELS = torch.zeros(100, dtype=torch.int64)


def test_all_labels_in_one_call_cost_epsilon_for_the_whole_run() -> None:
    made = of_labels(epsilon=1.0)
    assert asked(made, LABELS).shape == (100,)
    assert made.account.epsilon_label() == pytest.approx(1.0, abs=1e-4)
    assert made.account.epsilon_label() <= 1.0
    assert made.account.epsilon() == math.inf
    assert made.account.epsilon_published() == 1.0


def test_labels_that_an_older_checkpoint_takes_back_cost_again_in_one_process_too() -> None:
    """A script that fits once more from an earlier file has the same object, which knows that it was charged."""
    made = of_labels(epsilon=1.0)
    before = made.state()
    first = asked(made, LABELS)
    made.load(before)
    made.require_open_for(None)  # as a second fit does, which opens nothing
    second = asked(made, LABELS)
    assert not torch.equal(first, second), "drawn twice"
    twice = compose({RandomizedResponse(1.0, 10, **OF_LABEL): 2}, DELTA).epsilon
    assert made.account.epsilon_label() == twice


@pytest.mark.parametrize("broken", [False, True])
def test_draws_of_a_copy_or_at_another_epsilon_cost_again(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    made = of_labels(epsilon=1.0)
    first = asked(made, LABELS)
    copied = copy.deepcopy(made)
    if broken:  # as if what was charged once were charged for good
        monkeypatch.setattr(Ledger, "charge", lambda *_, **__: None)
    second = asked(copied, LABELS)
    made.release(DirectLabels(epsilon=8.0), LABELS)
    released = compose({RandomizedResponse(8.0, 10, **OF_LABEL): 1}, DELTA).epsilon
    assert (made.account.epsilon_label() < released) is broken
    found = {charge.release: count for charge, count in copied.account.counts().items()}
    twice = LabelOnly(RandomizedResponse(1.0, 10, **OF_LABEL))
    assert (found[twice] < 2) is broken and not torch.equal(first, second)


# --- one event for both statements ---


def test_releases_about_records_hold_for_labels_where_a_lemma_says_so() -> None:
    assert Gaussian(1.0).for_labels == Gaussian(1.0)
    assert SampledGaussian(1.0, 0.1).for_labels is None  # add-or-remove does not cover replacing
    assert Unbounded("shown").for_labels == Unbounded("shown")
    assert Gaussian(1.0, unit=Unit.CLIENT).for_labels is None
