"""A client by itself: what leaves it is charged first, by its own ledger, whoever the server is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import BATCH_SIZE, client, question, reproducible, small_network, terms
from support.variants import MoodyTeacher

from lightning_modules.federated import ClientRefusal, FederatedClient
from lightning_modules.losses.targets import GradientTargets
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose, fully_adaptive_epsilon
from privacy.events import Gaussian
from privacy.identity import Training
from privacy.ledger import Ledger
from privacy.mechanisms import NoisyGradients, NoisyLabels
from privacy.plan import Charge

DELTA = 1e-5
MU = math.sqrt(BATCH_SIZE) * 2 / 20.0


def test_without_noise_nothing_is_bounded_and_the_server_s_guarantee_is_named() -> None:
    asked = client(trusts_server=True)
    for sigma in (20.0, 0.0):
        asked.begin(terms(NoisyGradients(release="per_sample_full", noise_multiplier=sigma)))
        asked.answer(question())
        said = asked.guarantee()
        named = any("the guarantee of that server's run holds" in one for one in said.not_covered)
        assert math.isinf(said.epsilon) == named == (not sigma)


def test_the_guarantee_covers_the_plan_before_anything_is_answered(tmp_path: Path) -> None:
    asked = client()
    asked.begin(terms(), folder=tmp_path)
    said = json.loads((tmp_path / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]
    assert said["epsilon"] == pytest.approx(compose({Gaussian(MU): 5}, DELTA).epsilon, rel=1e-6)
    assert said["unit"] == "one training record of this client" and said["run"] == "server-" + "aa" * 16
    asked.answer(question())
    asked.end()
    after = json.loads((tmp_path / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]
    assert after["epsilon"] == said["epsilon"] and after["queries"] == BATCH_SIZE


@pytest.mark.parametrize("broken", [False, True])
def test_a_client_without_a_plan_has_no_page_until_the_run_ends(broken: bool, tmp_path: Path) -> None:
    """It would say that nothing was answered, and stay so if the client is killed."""
    asked, page = client(), tmp_path / "guarantee.json"
    asked.begin(terms(calls=None), folder=tmp_path)
    if broken:
        asked._write_guarantee()
    for number in range(5):
        asked.answer(question(number))
    if not broken:
        assert not page.exists()
        asked.end()
    said = json.loads(page.read_text(encoding="utf-8"))["guarantee"]["epsilon"]
    assert said == pytest.approx(0 if broken else compose({Gaussian(MU): 5}, DELTA).epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"release": "ensemble"}, "was asked for 'ensemble'"), ({"noise_multiplier": 0.0}, "gradients without noise")],
)
def test_no_server_takes_a_clients_noise_away(settings: dict[str, Any], message: str) -> None:
    asked = client(target_epsilon=0.01)
    with pytest.raises(ClientRefusal, match=message):
        asked.begin(terms(NoisyGradients(**{"release": "per_sample_full", **settings})))
    asked = client()
    for kind in (NoisyGradients(release="per_sample_full", noise=reproducible(0)), NoisyLabels(noise=reproducible(0))):
        asked.begin(terms(kind))
        assert asked.session.mechanism.source.secure, "a server's source of noise is not taken"


@pytest.mark.parametrize(
    "changed",
    [
        {"images": torch.full((BATCH_SIZE, 1, 8, 8), torch.nan)},
        {"outputs": torch.full((BATCH_SIZE, 10), torch.inf)},
        {"images": torch.zeros(BATCH_SIZE, 1, 9, 8)},
        {"outputs": torch.zeros(BATCH_SIZE + 1, 10)},
        {"candidates": torch.ones(BATCH_SIZE, 10, dtype=torch.bool)},
    ],
)
def test_a_question_that_does_not_fit_is_refused_and_costs_nothing(changed: dict[str, Any]) -> None:
    asked = client()
    asked.begin(terms())
    with pytest.raises(ClientRefusal, match=r"must be finite|must have shapes"):
        asked.answer(question(**changed))
    asked.begin(terms(NoisyLabels(epsilon=1.0, smallest=3)))
    with pytest.raises(ClientRefusal, match=r"must be finite|must have shapes"):
        asked.answer(question(**({} if "candidates" in changed else changed)))
    assert not asked.session.account.counts()


def test_a_client_keeps_to_its_own_budget() -> None:
    asked = client(target_epsilon=compose({Gaussian(MU): 2}, DELTA).epsilon * 1.001)
    asked.begin(terms())
    for number in range(2):
        asked.answer(question(number))
    with pytest.raises(BudgetExceeded):
        asked.answer(question(2))
    spent = client(target_epsilon=0.01)
    with pytest.raises(BudgetExceeded):
        spent.begin(terms())


@pytest.mark.parametrize("own", [{}, {"delta": None}], ids=["its own", "the server's"])
def test_no_server_loosens_a_target_by_its_delta(own: dict[str, Any]) -> None:
    asked = client(target_epsilon=compose({Gaussian(MU): 2}, DELTA).epsilon * 1.001, **own)
    asked.begin(terms(delta=0.5))
    most = asked.session.affordable(limit=100)
    assert most > 50 if own else most == 2


def test_no_more_is_answered_than_was_agreed(tmp_path: Path) -> None:
    """The page covers the plan and says that it was made beforehand: a server must not go on by what it was told."""
    asked = client(ledger=str(tmp_path / "ledger.jsonl"))
    asked.begin(terms(calls=2))
    for number in range(2):
        asked.answer(question(number))
    with pytest.raises(ClientRefusal, match="2 questions were agreed"):
        asked.answer(question(2))
    planned = asked.guarantee()
    assert planned.epsilon == pytest.approx(compose({Gaussian(MU): 2}, DELTA).epsilon, rel=1e-6)
    asked.end()
    asked.begin(terms(calls=2))  # the same run once more: another plan, which the page must not call the first
    asked.answer(question(2))
    said = asked.guarantee()
    assert said.epsilon > planned.epsilon
    assert any("planned before the first release" in text for text in planned.assumptions)
    assert not any("planned before the first release" in text for text in said.assumptions)


def test_a_restarted_client_goes_on_with_its_ledger(tmp_path: Path) -> None:
    """What its process forgot stands in the file, under the server's run."""
    path = str(tmp_path / "ledger.jsonl")
    first = client(ledger=path)
    first.begin(terms())
    first.answer(question())
    del first  # as killed: nothing is settled
    second = client(ledger=path)
    second.begin(terms())
    second.answer(question(1))
    assert second.session.calls_made() > 2, "the whole block that was reserved counts"
    assert second.guarantee().epsilon >= compose({Gaussian(MU): 5}, DELTA).epsilon
    second.end()
    book = Ledger(path=path, private_data="records of one", run="bb" * 16)
    assert book.runs() == ["server-" + "aa" * 16]


@pytest.mark.parametrize("most", [3, 100])
def test_a_server_that_restarts_again_and_again_does_not_use_up_the_budget(most: int, tmp_path: Path) -> None:
    """A new run costs its whole plan from its first answer on, a restart may ask everything again: both are counted."""
    asked = client(ledger=str(tmp_path / "ledger.jsonl"), max_starts=most)
    for start in range(5):
        run = terms(run=f"{start // 2:032x}", calls=5)
        if start >= most:
            with pytest.raises(ClientRefusal, match=r"has begun 3 times, as often as its owner allows \(max_starts\)"):
                asked.begin(run)
            continue
        asked.begin(run)
        asked.answer(question())
        asked.end()
    book = Ledger(path=asked.ledger, private_data="records of one", run="reader")
    assert sum(book.counts().values()) == min(most, 5)
    assert asked.starts == min(most, 5)


def test_a_client_may_ask_for_a_bound_that_holds_however_a_server_chooses_runs(tmp_path: Path) -> None:
    ledger, target = str(tmp_path / "ledger.jsonl"), 3.0
    with pytest.raises(ValueError, match="fully_adaptive needs a target_epsilon"):
        client(fully_adaptive=True).begin(terms())
    for adaptive in (True, False):
        asked = client(ledger=ledger, target_epsilon=target, fully_adaptive=adaptive)
        asked.begin(terms(run=f"{adaptive:032x}"))
        asked.answer(question())
        said = asked.guarantee()
        chosen = [text for text in said.assumptions if "because of what an earlier one released" in text]
        if adaptive:  # the first of two
            assert said.epsilon == said.epsilon_all_runs == target and not chosen
            assert any(text.startswith("target_epsilon = 3 was fixed before") for text in said.assumptions)
            assert fully_adaptive_epsilon({Gaussian(MU): 5}, DELTA) <= target
        else:
            assert said.epsilon < target and chosen, "two runs compose only if one was not chosen by the other"
        asked.end()


@pytest.mark.parametrize("broken", [False, True])
def test_a_server_s_run_may_be_called_like_a_training(broken: bool, tmp_path: Path) -> None:
    """A client says its training's identity; a run of the same name could not be told from it."""
    path = tmp_path / "ledger.jsonl"
    teacher = PrivateTeacher(small_network(0), private_data="records of one", training=Training("cd" * 16))
    asked = FederatedClient(name="one", teacher=teacher, ledger=str(path))
    run = str(asked.introduction().training)
    if broken:
        with pytest.raises(ValueError, match="is a training, and cannot be a run as well"):
            Ledger(path=path, private_data="records of one", run="x").register(Training(run))
            Ledger(path=path, private_data="records of one", run=run).charge(Charge(release=Gaussian(MU)))
        return
    asked.begin(terms(run=run, calls=50))
    asked.answer(question())
    assert asked.guarantee().epsilon >= compose({Gaussian(MU): 50}, DELTA).epsilon * (1 - 1e-6)
    asked.end()
    assert Ledger(path=path, private_data="records of one", run="reader").runs() == [f"server-{run}"]


def test_a_teacher_that_breaks_is_not_told_from_one_that_does_not() -> None:
    asked = client(MoodyTeacher())
    asked.begin(terms())
    assert bool(torch.isfinite(asked.answer(question())).all())


def test_noise_is_each_clients_own() -> None:
    """Two clients with one teacher answer differently, and by the scale that is charged."""
    answers = []
    for number in range(2):
        asked = client(small_network(0), noise=reproducible(number))
        asked.begin(terms())
        answers.append(asked.answer(question()))
    apart = (answers[0] - answers[1]).double() / (20.0 * 1e-3 * math.sqrt(2))
    assert 0.7 < float(apart.std()) < 1.35, "not two thirds nor three halves of the noise that is charged"


def test_an_object_of_the_server_s_sees_no_logits() -> None:
    seen: list[torch.Tensor] = []

    class Spy(GradientTargets):
        def gradients(self, student_logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
            seen.append(teacher_logits)
            return super().gradients(student_logits, teacher_logits)

    one = client()
    one.begin(terms(gradient_targets=Spy()))
    one.answer(question())
    assert not seen
    Spy().gradients(torch.zeros(1, 10), torch.zeros(1, 10))  # the control
    assert len(seen) == 1
