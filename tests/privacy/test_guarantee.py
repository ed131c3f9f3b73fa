"""The statement covers the plan and not the running sum, keeps the claim apart, and says what voids it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import plan_of, session_of

from privacy import Budget, exported
from privacy.account import PrivacyAccount
from privacy.accounting.composition import compose
from privacy.checks import round_up, short_epsilon
from privacy.events import Gaussian, Release, SampledGaussian, Unbounded, release_from_dict
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.journal import LedgerError, write_atomically
from privacy.mechanisms import NoisyGradients, Shape
from privacy.mechanisms.base import NoiseSource, ReproducibleNoise
from privacy.plan import Plan
from privacy.session import PrivacySession
from privacy.statement import epsilons, guarantee_of


def unopened(*, batch_size: int = 256, **settings: Any) -> PrivacySession:
    noisy = {"release": "per_sample_full", "noise_multiplier": 100.0, **settings}
    return session_of(NoisyGradients, Shape(batch_size, 10), opened=False, **noisy)


def session(
    *, records: int | None = 1500, calls: int = 0, ledger: Path | None = None, **settings: Any
) -> PrivacySession:
    made = unopened(**settings)
    made.open(private_data="digits/train", num_records=records, ledger=ledger)
    for _ in range(calls):
        asked(made)
    return made


def asked(made: PrivacySession) -> None:
    made.release(made.mechanism, torch.zeros(made.shape[:2]))


def statement(made: PrivacySession, planned: int | None = None) -> Guarantee:
    made.plan = Plan() if planned is None else plan_of(made, planned)
    return guarantee_of(made, artefacts=["student", "synthetic images"])


def test_the_plan_is_what_is_guaranteed_and_the_running_sum_stands_beside_it() -> None:
    made = session(calls=1)
    guarantee = statement(made, planned=200)
    assert guarantee.epsilon == pytest.approx(28.838725, abs=5e-6)
    assert guarantee.epsilon_spent == pytest.approx(1.2151, abs=5e-5)
    # Nothing that the data's ledger gives as a total lies below what one run states.
    assert guarantee.epsilon_all_runs == guarantee.epsilon
    # The mutant that reports the running sum.
    assert statement(made).epsilon == guarantee.epsilon_spent < guarantee.epsilon
    assert statement(made, planned=0).epsilon == guarantee.epsilon_spent
    assert statement(session(), planned=200).epsilon == guarantee.epsilon
    assert statement(session()).epsilon == 0


def test_other_runs(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    before = session(ledger=path, calls=179)
    before.close()
    alone = session(ledger=path, calls=1, scope="run")
    together = session(ledger=path, ledger_block=1)
    after = statement(alone)
    assert after.epsilon == pytest.approx(1.2151, abs=5e-5)
    assert after.epsilon_all_runs > 20
    assert after.runs == 2
    assert any("other runs and teachers from the same private data" in text for text in after.not_covered)
    # Of the run alone: what one call costs, in either scope; the plan counts, too.
    assert after.epsilon_of_run == after.epsilon
    of_all = statement(together, planned=200)
    assert of_all.epsilon_of_run == pytest.approx(28.838725, abs=5e-6) and of_all.epsilon > of_all.epsilon_of_run
    # The sum rests on the other runs as well, whose pages say on what.
    assert any("other runs in the ledger assume" in text for text in of_all.assumptions)
    assert not any("other runs in the ledger assume" in text for text in after.assumptions)
    assert Guarantee.from_dict(json.loads(json.dumps(of_all.to_dict()))).to_markdown() == of_all.to_markdown()
    alone.close()
    whole = statement(together)
    assert whole.epsilon == whole.epsilon_all_runs == after.epsilon_all_runs
    assert not any("other runs and teachers from" in text for text in whole.not_covered)


@pytest.mark.parametrize(("calls", "planned"), [(1, None), (1, 3), (0, 1)])
def test_voids_are_told(calls: int, planned: int | None) -> None:
    guarantee = statement(session(noise=ReproducibleNoise(seed=1), calls=calls), planned)
    assert guarantee.epsilon == math.inf and guarantee.epsilon_spent == (math.inf if calls else 0)
    assert any(text.startswith("VOID: the noise can be reproduced") for text in guarantee.assumptions)
    assert not any("operating system" in text for text in guarantee.assumptions)
    assert guarantee.claimed_epsilon < 1 and "Nothing bounds" in guarantee.headline()
    assert "VOID: no noise was added" in statement(session(noise_multiplier=0, calls=1)).assumptions
    sound = statement(session(calls=1)).assumptions
    assert not any("VOID" in text for text in sound) and any("operating system" in text for text in sound)


def test_a_delta_above_one_over_the_records_is_the_papers_and_bounds_nothing() -> None:
    """CelebA and ImageNet have more than 1e5 records."""
    made = session(records=162_770, calls=2, accounting="published")
    said = statement(made, planned=5)
    assert said.epsilon == said.epsilon_spent == said.epsilon_of_run == said.epsilon_all_runs == math.inf
    assert made.account.epsilon_label() == made.account.epsilon_of_ledger() == math.inf and said.claimed_epsilon < 1
    reason = "VOID: delta must lie below 1/N = 6.14e-06 for the 162770 records of digits/train, got 1e-05"
    assert reason in said.to_markdown() and "Nothing bounds" in said.headline()
    releases = {release_from_dict(release): count for release, count in said.releases}
    assert compose(releases, 1e-5).epsilon == math.inf  # what `verify` computes
    # Where 1/N is above δ, the same releases are bounded; who relies on the bound may not choose such a δ.
    sound = statement(session(records=99_999, calls=2, accounting="published"), planned=5)
    assert sound.epsilon < 10 and "VOID" not in sound.to_markdown()
    for records in (100_000, 162_770):
        with pytest.raises(ValueError, match=f"delta must lie below 1/N .* {records} records of digits/train"):
            session(records=records, accounting="record")
    with pytest.raises(ValueError, match="delta must lie below 1/N"):
        of_dp_sgd(records=162_770, accounting="published")


def test_the_page_says_it_all_and_what_the_figure_is_worth() -> None:
    guarantee = statement(session(calls=200))
    page, facts = guarantee.to_markdown(), (guarantee.unit, guarantee.relation, guarantee.mechanism, guarantee.source)
    for part in (guarantee.headline(), *facts, *guarantee.assumptions, *guarantee.not_covered):
        assert part in page
    assert "protects no record" in guarantee.headline()
    assert page.index("| record-level ε | 28.8388 |") < page.index("ε = 0.0456")
    assert any("kept in memory" in text for text in guarantee.assumptions)
    unknown = statement(session(records=None, calls=1))
    assert any("number of private records, which was not given" in text for text in unknown.assumptions)
    assert "protects no record" not in unknown.headline()


@pytest.mark.parametrize("published", [True, False])
def test_the_paper_s_figure_is_left_out_where_nobody_asked_for_it(published: bool) -> None:
    """Beside a bound of 8·10⁶ a figure of 0.05 will be quoted."""
    made = session(calls=200, published=published)
    said = statement(made)
    assert ("0.0456" in said.to_markdown()) is (said.to_dict()["published_claim"] is not None) is published
    assert ("privacy/epsilon_published" in epsilons(made)) is published
    assert Guarantee.from_dict(json.loads(json.dumps(said.to_dict()))).to_markdown() == said.to_markdown()


def of_dp_sgd(
    *, noise: NoiseSource | None = None, released: Release | None = None, records: int = 1500, **settings: Any
) -> Guarantee:
    """Of one call about a teacher that was trained by DP-SGD."""
    steps = {released or SampledGaussian(noise_multiplier=2.0, sample_rate=0.1): 20}
    made = unopened(noise=noise, **settings)
    made.open(private_data="digits/train", num_records=records, training=Training("ab" * 16, releases=steps))
    asked(made)
    return statement(made)


def test_a_teacher_by_dp_sgd_may_be_published_and_no_other() -> None:
    steps = compose({SampledGaussian(noise_multiplier=2.0, sample_rate=0.1): 20}, 1e-5).epsilon
    bounded = of_dp_sgd()
    assert bounded.teacher_epsilon == pytest.approx(steps)
    page = bounded.to_markdown()
    assert f"may be published at its ε = {round_up(steps)} (δ = 1e-05)" in page and "costs no more" in page
    assert "must stay private" not in page
    # Whatever the queries cost: a student of one step costs less than its teacher.
    assert of_dp_sgd(noise_multiplier=1e6).epsilon < of_dp_sgd(noise_multiplier=1e6).teacher_epsilon
    for private in (statement(session(calls=1)), of_dp_sgd(released=Unbounded("its noise can be drawn again"))):
        assert private.teacher_epsilon == math.inf
        assert "a teacher itself, which must stay private" in private.to_markdown()
        assert "may be published" not in private.to_markdown()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    file = write_atomically(tmp_path / "figures.json", "old")

    def fail(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


FIGURES = [3.0000001, 2.9999985, 0.1095001, 28.838725, 1e-5 / 3, 999.9999, 123456.789, 3.0, 0.0, math.inf]


@pytest.mark.parametrize("value", FIGURES)
def test_figures_are_rounded_up(value: float) -> None:
    for digits in (4, 6):
        shown = float(round_up(value, digits=digits))
        assert value <= shown <= value * (1 + 10.0 ** (1 - digits))
    assert value <= float(short_epsilon(value).replace(",", ""))


@pytest.mark.parametrize("broken", [False, True])
def test_a_fully_adaptive_guarantee_states_its_target(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What filters allowed so far is no bound by itself: whether it went on depended on the answers."""
    if broken:
        monkeypatch.setattr(PrivacyAccount, "stated", lambda self, epsilon: epsilon)
    made = session(target_epsilon=3.0, fully_adaptive=True, calls=2)
    spent = made.account.epsilon()
    assert spent > compose({charge.release: n for charge, n in made.account.counts().items()}, 1e-5).epsilon
    said = statement(made, planned=3)
    figures = (said.epsilon, said.epsilon_spent, said.epsilon_of_run, said.epsilon_all_runs)
    assert (figures == (3.0,) * 4) is not broken
    assert "privacy filters" in said.source and any("was fixed before the first release" in x for x in said.assumptions)
    assert not any("number of steps" in text for text in said.assumptions)
    content = said.to_dict()
    assert Guarantee.from_dict(content) == said
    assert any(line.startswith("guarantee.json") for line in exported._statements(content)) is broken
    spoilt = {**content, "guarantee": {**content["guarantee"], "epsilon_spent": 1.01 * said.epsilon}}
    assert any("epsilon_spent must lie between 0 and epsilon" in line for line in exported._statements(spoilt))
    content["guarantee"]["epsilon"] = content["guarantee"]["epsilon_of_run"] = 2.9  # which also allows these releases
    assert any("2.9, and not the target that was fixed" in line for line in exported._statements(content))
    content["guarantee"]["epsilon"] = content["guarantee"]["epsilon_of_run"] = 0.5 * spent
    assert any("its releases compose to" in line for line in exported._statements(content))


def test_a_target_below_what_was_spent_before_is_no_bound() -> None:
    made = session(target_epsilon=3.0, calls=2)
    made.account.budget = Budget(target_epsilon=0.9 * made.account.epsilon(), fully_adaptive=True)
    assert statement(made).epsilon == math.inf


def test_a_fully_adaptive_budget_is_fixed_before_the_first_release(tmp_path: Path) -> None:
    """A target that is set to what was spent, again and again, bounds nothing."""

    def begun(target: float, *, delta: float = 1e-5) -> PrivacySession:
        made = unopened(batch_size=4, noise_multiplier=400.0, target_epsilon=target, delta=delta, fully_adaptive=True)
        made.open(private_data="digits/train", ledger=tmp_path / "ledger.jsonl")
        return made

    begun(0.5), begun(2.0)  # neither has released anything
    late = begun(2.5)
    asked(begun(3.0))
    asked(begun(3.0))
    with pytest.raises(LedgerError, match=r"target_epsilon is 2\.5 at .* went by 3"):
        asked(late)
    for target, delta in ((9.0, 1e-5), (2.9, 1e-5), (3.0, 1e-6)):
        with pytest.raises(LedgerError, match=f"target_epsilon is {target:g} at .* went by 3 at delta=1e-05"):
            begun(target, delta=delta)


def test_the_page_says_that_the_ledger_of_a_second_teacher_is_not_there(tmp_path: Path) -> None:
    made = unopened(batch_size=4, noise_multiplier=400.0)
    made.open(private_data="digits/train", ledger=tmp_path / "ledger.jsonl")
    for head, missing in ((made.ledger.head, False), (("of another", 1, "00"), True)):
        made.admit(Training("ab" * 16, head=head))
        assert made.ledger_was_replaced is missing


def test_a_training_s_own_bound_holds_whatever_its_answers_cost_in_a_fully_adaptive_budget(tmp_path: Path) -> None:
    """Which of both is smaller would depend on the answers."""
    training = Training("ab" * 16, releases={Gaussian(1.0): 1})
    for adaptive in (False, True):
        made = unopened(batch_size=4, noise_multiplier=1e6, target_epsilon=9.0, fully_adaptive=adaptive)
        made.open(private_data="digits/train", training=training)
        asked(made)
        assert (made.account.epsilon() > 4) is adaptive
