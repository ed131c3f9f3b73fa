"""Votes through the annotator: the noise that is charged for, charged before, and covered by their plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.plans import plan_of
from support.short_names import budgeted

from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose
from privacy.annotators.votes import VoteAnnotator
from privacy.events import GaussianVotes, LaplaceVotes, Release, SampledGaussian, ThresholdCheck
from privacy.identity import Training, new_training_id
from privacy.ledger import Ledger
from privacy.mechanisms.noise import ReproducibleNoise
from privacy.mechanisms.votes import REJECTED, VOTE_MECHANISMS
from privacy.plan import Plan
from privacy.published import published_dgd_epsilon

CLASSES = 10
CONFIDENT: dict[str, Any] = {"mechanism": "confident", "threshold": 200.0, "threshold_scale": 150.0}


def annotator(kind: type[VoteAnnotator] = VoteAnnotator, **settings: Any) -> VoteAnnotator:
    made = kind(**budgeted(settings))
    made.bind(batch_size=8, num_classes=CLASSES, paper="DGD")
    made.open(private_data="digits/train", ledger=settings.get("ledger"))
    return made


def counts(queries: int, *first: int) -> torch.Tensor:
    """Votes of 250 teachers."""
    row = torch.zeros(CLASSES, dtype=torch.int64)
    row[: len(first)] = torch.tensor(first)
    row[-1] = 250 - row.sum()
    return row.repeat(queries, 1)


def confident(checks: int, responses: int) -> float:
    """ε of so many checks and responses of `CONFIDENT`."""
    return compose({ThresholdCheck(150.0): checks, GaussianVotes(40.0): responses}, 1e-5).epsilon


def winner_probability(kind: str, scale: float) -> float:
    """P(class 0 wins with counts (30, 0)) in closed form."""
    if kind == "gaussian":
        return float(stats.norm.cdf(30 / (math.sqrt(2) * scale)))
    if kind == "laplace":
        gap = 30 / scale
        return 1 - math.exp(-gap) * (2 + gap) / 4  # the difference of two Laplace draws
    values = np.arange(-4000, 4001)
    mass = math.tanh(0.5 / scale) * np.exp(-np.abs(values) / scale)
    return float(mass @ np.interp(values + 30, values, mass.cumsum()))  # a tie goes to class 0


@pytest.mark.parametrize("mechanism", ["laplace", "discrete_laplace", "gaussian"])
def test_answers_have_the_noise_that_is_charged_for(mechanism: Any) -> None:
    """Accepted at its scale; at 2/3 and at 3/2 of it the same test refuses them."""
    made = VoteAnnotator(mechanism=mechanism, scale=40.0)
    made.bind(batch_size=8, num_classes=2, paper="DGD")
    made.open(private_data="digits/train")
    draws = 20_000
    wins = int((made.annotate(torch.tensor([[140, 110]]).repeat(draws, 1)) == 0).sum())
    release = made.charge.release
    charged = release.scale if isinstance(release, LaplaceVotes) else release.noise_std  # type: ignore[attr-defined]

    def p_value(scale: float) -> float:
        return float(stats.binomtest(wins, draws, winner_probability(mechanism, scale)).pvalue)

    assert p_value(charged) > 1e-8
    assert p_value(2 / 3 * charged) < 1e-12 and p_value(3 / 2 * charged) < 1e-12


def test_the_check_has_the_noise_that_is_charged_for() -> None:
    made = annotator(**CONFIDENT)
    draws = 20_000
    passed = int((made.annotate(counts(draws, 140)) != REJECTED).sum())

    def p_value(scale: float) -> float:
        return float(stats.binomtest(passed, draws, float(stats.norm.sf(60 / scale))).pvalue)

    assert p_value(150.0) > 1e-8
    assert p_value(100.0) < 1e-12 and p_value(225.0) < 1e-12
    assert made.account.counts() == {made._check: draws, made._response: passed}


@pytest.mark.parametrize("settings", [{}, {"mechanism": "gaussian"}, CONFIDENT], ids=["laplace", "gaussian", "checks"])
def test_queries_are_charged_before_noise_is_drawn(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(ReproducibleNoise):
        secure = True

        def words(self, count: int) -> Any:
            raise OSError("no noise")

    path = tmp_path / "ledger.jsonl"
    made = annotator(**settings, ledger=str(path), noise=Failing(seed=0))
    with pytest.raises(OSError, match="no noise"):
        made.annotate(counts(7, 200, 30))
    # As another process reads it: nothing is settled, so at least the 7 count.
    assert sum(Ledger(path=path, private_data="digits/train", run="reader").counts().values()) >= 7


def test_a_query_left_out_costs_its_check_alone() -> None:
    made = annotator(**{**CONFIDENT, "threshold": 1e9})
    assert made.annotate(counts(50, 200)).tolist() == [REJECTED] * 50
    assert made.account.epsilon() == compose({ThresholdCheck(150.0): 50}, 1e-5).epsilon
    assert (made.calls_made(), made.responses_made) == (50, 0)


def test_answered_and_left_out_queries_cost_what_is_known_from_elsewhere() -> None:
    made = annotator(**{**CONFIDENT, "threshold": 1e9})
    made.annotate(counts(700, 200))
    made.threshold = -1e9
    made.annotate(counts(300, 200))
    assert made.account.epsilon() == pytest.approx(2.6648, abs=5e-5)
    assert made.account.epsilon() == confident(1000, 300)


def stated(made: VoteAnnotator, plan: Plan) -> float:
    return made.covered_epsilon(plan)


def stated_by_what_came_out(made: VoteAnnotator, plan: Plan) -> float:
    """Negative control: a number of answers that depends on the private data as if it had been fixed."""
    return made.account.epsilon()


@pytest.mark.parametrize(("statement", "same"), [(stated, True), (stated_by_what_came_out, False)])
def test_what_is_stated_does_not_depend_on_how_many_were_answered(
    statement: Callable[[VoteAnnotator, Plan], float], same: bool
) -> None:
    figures = []
    for threshold in (1e9, -1e9):
        made = annotator(**{**CONFIDENT, "threshold": threshold, "max_responses": 60})
        plan = made.fix_plan(Plan(), lambda: 100)
        made.annotate(counts(50, 200))
        figures.append(statement(made, plan))
    assert (figures[0] == figures[1]) is same
    if same:
        assert figures[0] == confident(100, 60)


def test_no_more_are_answered_than_were_allowed() -> None:
    made = annotator(**{**CONFIDENT, "threshold": -1e9, "max_responses": 60})
    assert made.affordable(limit=100) == 60
    made.annotate(counts(50, 200))
    assert made.affordable(limit=100) == 10
    with pytest.raises(BudgetExceeded, match="max_responses=60"):
        made.annotate(counts(11, 200))
    assert made.calls_made() == 50


def test_a_target_that_everything_was_held_to_is_the_figure() -> None:
    made = annotator(**{**CONFIDENT, "target_epsilon": 1.0})
    plan = made.fix_plan(Plan(), lambda: 10_000)
    while (number := made.affordable(limit=20)) > 0:
        made.annotate(counts(number, 200))
    assert made.account.epsilon() <= 1.0
    assert made.covered_epsilon(plan) == made.covered_epsilon(None) == 1.0
    free = annotator(**CONFIDENT)
    assert free.covered_epsilon(free.fix_plan(Plan(), lambda: 10_000)) > 1.0
    # Laplace noise: the whole plan, which no filter is known to cut short.
    whole = compose({LaplaceVotes(40.0): 1000}, 1e-5).epsilon
    laplace = annotator(target_epsilon=1.0)
    assert laplace.covered_epsilon(laplace.fix_plan(Plan(), lambda: 1000)) == pytest.approx(whole)


BASELINE_ID = new_training_id()


def reveal(made: VoteAnnotator, releases: dict[Release, int] | None, *, reason: str) -> None:
    """Uses a second model, a baseline, beside the ensemble."""
    made.charge_nonprivate_access(reason, training=made.admit(Training(BASELINE_ID, releases=releases)))


def test_a_baseline_without_privacy_leaves_no_bound_and_costs_nothing_in_the_paper() -> None:
    made = annotator(latent_epsilon=0.01)
    for _ in range(2):
        reveal(made, None, reason="the generator was trained against it")
    made.annotate(counts(27, 200))
    assert made.account.epsilon() == math.inf == made.covered_epsilon(plan_of(made, 27))
    assert made.account.unbounded() == ["the generator was trained against it"]
    assert made.account.epsilon_published() == published_dgd_epsilon(27, 0.05, 1e-5, 0.01)
    assert made.calls_made() == 27


BASELINE: dict[Release, int] = {SampledGaussian(1.0, 0.01): 1000}


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_a_baseline_by_dp_sgd_composes_with_the_votes(mechanism: Any) -> None:
    made = annotator(mechanism=mechanism)
    for _ in range(2):  # one model: one release, however often it is used
        reveal(made, BASELINE, reason="x")
    made.annotate(counts(400, 200))
    together = compose({made.charge.release: 400, **BASELINE}, 1e-5).epsilon
    assert made.account.epsilon() == pytest.approx(together, rel=1e-9)
    votes, baseline = (compose(each, 1e-5).epsilon for each in ({made.charge.release: 400}, BASELINE))
    assert max(votes, baseline) < together < votes + baseline
    assert made.account.epsilon_published() < math.inf
    assert made.calls_made() == 400


def test_the_baselines_bound_covers_no_use_of_the_ensemble_itself() -> None:
    made = annotator()
    reveal(made, BASELINE, reason="x")
    assert made.account.epsilon() == compose(BASELINE, 1e-5).epsilon
    made.charge_nonprivate_access("a teacher of the ensemble trained the generator")
    assert made.account.epsilon() == math.inf


def test_nothing_is_revealed_under_a_target_that_it_exceeds() -> None:
    made = annotator(target_epsilon=0.5)
    for releases in (None, BASELINE):
        with pytest.raises(BudgetExceeded):
            reveal(made, releases, reason="x")
    assert not made.account.counts()


@pytest.mark.parametrize(
    "votes",
    [
        counts(3, 200).double(),
        counts(3, 200)[0],
        counts(3, 200)[:, :4],
        counts(3, 200) - 1,
        torch.cat([counts(2, 200), 2 * counts(1, 200)]),
        counts(0, 200),
    ],
    ids=["float", "one row", "fewer classes", "negative", "two votes each", "none"],
)
def test_what_are_no_votes_is_refused_and_not_charged(votes: torch.Tensor) -> None:
    made = annotator()
    with pytest.raises(ValueError, match="counts must"):
        made.annotate(votes)
    assert not made.account.counts()


def test_noise_that_can_be_drawn_again_voids_what_the_ledger_says() -> None:
    for settings in ({}, {**CONFIDENT, "threshold": -1e9}):
        made = annotator(**settings, noise=ReproducibleNoise(seed=1))
        made.annotate(counts(3, 200))
        assert made.account.epsilon() == math.inf == made.covered_epsilon(plan_of(made, 3))
        assert made.responses_made == 3


def test_latent_noise_has_the_papers_scale_and_stays_in_the_decoders_range() -> None:
    codes = torch.zeros(400, 32)
    silent = annotator().perturb_latents(codes.requires_grad_())
    assert torch.equal(silent, codes) and not silent.requires_grad
    loud = annotator(latent_epsilon=0.01).perturb_latents(codes)
    assert float(loud.abs().max()) <= 1.0 and float(loud.abs().mean()) > 0.1
    # Where the noise is small against the code, nothing is scaled back: its size is seen.
    size = float(annotator(latent_epsilon=6.4e5).perturb_latents(codes).abs().mean())
    assert size == pytest.approx(2 * 32 / 6.4e5, rel=0.05)
    assert size != pytest.approx(2 / 3 * 2 * 32 / 6.4e5, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mechanism": "majority"}, "mechanism must be one of"),
        ({"scale": 0.0}, "scale must be above 0"),
        ({"scale": True}, "scale must be a number, got True"),
        ({"threshold": 3.0}, "only mechanism='confident'"),
        ({"mechanism": "confident"}, "threshold must be a finite number"),
        ({"mechanism": "confident", "threshold": 3.0}, "threshold_scale must be above 0"),
        ({**CONFIDENT, "max_responses": 0}, "max_responses must be"),
        ({"latent_epsilon": -1.0}, "latent_epsilon must be above 0"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VoteAnnotator(**budgeted(settings))


def test_discrete_noise_is_whole_numbers_and_costs_a_little_more() -> None:
    laplace, discrete = (annotator(mechanism=kind) for kind in ("laplace", "discrete_laplace"))
    for made in (laplace, discrete):
        made.annotate(counts(1000, 200))
    assert laplace.account.epsilon() < discrete.account.epsilon() < 1.01 * laplace.account.epsilon()
    assert laplace.account.epsilon_published() == discrete.account.epsilon_published()
    assert bool((VOTE_MECHANISMS["discrete_laplace"].labels(counts(9, 250), scale=1.0, noise=laplace.noise) == 0).all())
