"""Several processes as one: what they are charged, which noise is drawn, where they stop, and who writes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.seeded import Seeded, correlated, has_deviation
from support.sessions import asked
from support.threads import in_threads

from privacy import Budget
from privacy.account import BudgetExceeded
from privacy.events import SampledGaussian
from privacy.identity import Training
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.mechanisms import (
    Mechanism,
    NoisyGradients,
    NoisyLabels,
    NoisyMeanResponse,
    NoisyVotes,
    RawResponses,
    Shape,
)
from privacy.processes import ALONE, LedgerReplica, Processes, ProcessesError, by_all, failed_everywhere, on_rank_zero
from privacy.session import PrivacySession

ROWS, CLASSES, TEACHERS = 12, 4, 5
TRAINING = Training("0" * 32)
NO_TARGET = Budget()


class Unsendable(RuntimeError):
    """Cannot be pickled."""

    def __init__(self, *, what: str) -> None:
        super().__init__(what)


def failing(error: Exception) -> None:
    raise error


# --- errors and results ---


@pytest.mark.parametrize("error", [BudgetExceeded("no more"), Unsendable(what="no more")])
def test_an_error_of_the_first_reaches_all(error: Exception) -> None:
    def act(processes: Processes) -> None:
        with on_rank_zero(processes) as first:
            if first:
                failing(error)

    raised = in_threads(act)
    assert all(isinstance(each, RuntimeError) and "no more" in str(each) for each in raised)
    assert all(failed_everywhere(each) for each in raised)


def test_an_error_of_any_reaches_all_and_is_the_same() -> None:
    def act(processes: Processes) -> None:
        by_all(processes, lambda: failing(ValueError(f"of {processes.rank}")) if processes.rank else None)

    raised = in_threads(act, count=3)
    assert [str(each) for each in raised] == ["of 1"] * 3


# --- one charge, one ledger ---


def gradients(rows: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(rows, CLASSES),)


def of_teachers(rows: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(TEACHERS, rows, CLASSES),)


KINDS: dict[str, tuple[Mechanism, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "per_sample": (NoisyGradients(), gradients),
    "batch_mean": (NoisyGradients(release="batch_mean"), gradients),
    "ensemble": (NoisyGradients(release="ensemble"), of_teachers),
    "label": (NoisyLabels(), lambda rows: (*gradients(rows), torch.ones(rows, CLASSES, dtype=torch.bool))),
    "mean response": (NoisyMeanResponse(noise_multiplier=10.0), of_teachers),
    "response": (RawResponses(), gradients),
    "votes": (NoisyVotes(), lambda rows: (torch.tensor([[TEACHERS, 0, 0, 0]] * rows),)),
}


def opened(
    mechanism: Mechanism,
    processes: Processes,
    path: Path | None,
    *,
    rows: int = ROWS,
    budget: Budget = NO_TARGET,
    kind: type[PrivacySession] = PrivacySession,
) -> PrivacySession:
    session = kind(mechanism, Shape(rows, CLASSES), budget=budget)
    session.open(private_data="data", ledger=path, training=TRAINING, processes=processes)
    return session


def charges(path: Path) -> list[tuple[str, int, int]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    used = {line["block"]: line["used"] for line in lines if line["event"] == "settle"}
    return [
        (json.dumps([line["release"], line["claim"]]), line["queries"], used.get(line["block"], line["count"]))
        for line in lines
        if line["event"] == "reserve"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_a_batch_are_one_call_of_it(kind: str, tmp_path: Path) -> None:
    mechanism, private = KINDS[kind]

    def act(processes: Processes) -> tuple[float, int, torch.Tensor]:
        path = tmp_path / str(processes.size) / "ledger.jsonl"
        session = opened(mechanism, processes, path)
        for _ in range(2):
            released = asked(session, *private(ROWS // processes.size))
            seen = session.account.epsilon(), session.calls_made(), released
        session.close()
        return seen

    alone = act(ALONE)
    many = in_threads(act, count=3)
    assert charges(tmp_path / "3" / "ledger.jsonl") == charges(tmp_path / "1" / "ledger.jsonl")
    for epsilon, calls, released in many:
        assert (epsilon, calls) == alone[:2]
        assert len(released) == ROWS // 3


def test_shares_need_not_be_equal_and_may_be_empty() -> None:
    def act(processes: Processes) -> torch.Tensor:
        session = opened(NoisyVotes(), processes, None)
        counts = torch.tensor([[100_000 * (row == column) for column in range(CLASSES)] for row in range(3)])
        own = counts[2 * processes.rank : 2 * processes.rank + 2] if processes.rank < 2 else counts[:0]
        return asked(session, own)

    shares = in_threads(act, count=3)
    assert [share.tolist() for share in shares] == [[0, 1], [2], []]


def test_a_share_of_another_size_is_refused_by_all_and_not_charged() -> None:
    def act(processes: Processes) -> Any:
        session = opened(NoisyGradients(), processes, None)
        with pytest.raises(ValueError, match=r"shape \(B, c\)"):
            asked(session, torch.randn(ROWS, CLASSES))
        return session.calls_made()

    assert in_threads(act) == [0, 0]


def test_only_the_first_writes_and_no_other_can_charge(tmp_path: Path) -> None:
    def act(processes: Processes) -> Any:
        session = opened(NoisyGradients(), processes, tmp_path / "ledger.jsonl")
        ledger = session.account.ledger
        if processes.rank == 0:
            assert type(ledger) is Ledger
            return None
        assert isinstance(ledger, LedgerReplica)
        with pytest.raises(LedgerError, match="process 0"):
            ledger.charge(session.cost)
        with pytest.raises(LedgerError, match="process 0"):
            ledger.register(Training("1" * 32))
        with pytest.raises(LedgerError, match="process 0"):
            ledger.restore({session.cost: 3})
        return session.calls_made()

    assert in_threads(act) == [None, 0]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("when", ["opened", "admitted"])
def test_processes_have_one_teacher(when: str, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Training("1" * 32, releases={SampledGaussian(1.0, 0.01): 10})
    if broken:
        monkeypatch.setattr("privacy.session.require_same", lambda *given: None)

    def act(processes: Processes) -> float:
        own = TRAINING if processes.rank else bounded  # a stale copy, which nothing bounds
        session = PrivacySession(RawResponses(), Shape(ROWS, CLASSES))
        session.open(private_data="x", training=own if when == "opened" else bounded, processes=processes)
        session.admit(own)
        asked(session, torch.full((ROWS // 2, CLASSES), float(processes.rank)))
        return session.account.epsilon()

    found = in_threads(act)
    if broken:
        assert all(epsilon < 1 for epsilon in found)  # stated although half of the answers have no bound
    else:
        assert all(isinstance(error, ProcessesError) and "different teachers" in str(error) for error in found)


def test_a_nonprivate_access_is_charged_once() -> None:
    def act(processes: Processes) -> tuple[float, int]:
        session = opened(NoisyGradients(), processes, None)
        for _ in range(2):
            session.charge_nonprivate_access("a test")
        return session.account.epsilon(), sum(session.account.counts().values())

    assert in_threads(act) == [(math.inf, 1)] * 2


def test_a_plan_is_written_once_and_known_to_all(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def act(processes: Processes) -> Any:
        session = opened(NoisyGradients(), processes, path)
        session.fix_plan(lambda: 20)
        asked(session, *gradients(ROWS // processes.size))
        whole = session.account.epsilon(counts=session.covering())
        return session.plan, whole, session.account.epsilon_of_ledger(), sum(session.ledger.unmade().values())

    first, second = in_threads(act)
    assert first == second and first[0].calls == 20 and first[1] == first[2] and first[3] == 19
    lines = [json.loads(line)["event"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines.count("plan") == 1 and lines.index("plan") < lines.index("reserve")


# --- all stop at the same step ---


def steps_until_refused(session: PrivacySession, rows: int) -> int:
    for step in range(100):
        if session.affordable(limit=1) < 1:
            with pytest.raises(BudgetExceeded):
                asked(session, *gradients(rows))
            return step
        asked(session, *gradients(rows))
    raise AssertionError("never refused")


@pytest.mark.parametrize("together", [True, False])
def test_all_stop_at_the_same_step_of_one_budget(tmp_path: Path, together: bool) -> None:
    """The negative control: processes that each charge for themselves share a budget out between them."""
    alone = opened(NoisyGradients(), ALONE, None)
    target = alone.account.epsilon_of({alone.cost.release: 8})

    def act(processes: Processes) -> int:
        of = processes if together else ALONE
        budget = Budget(target_epsilon=target, ledger_block=3)
        session = opened(NoisyGradients(), of, tmp_path / "ledger.jsonl", budget=budget)
        return steps_until_refused(session, ROWS // of.size)

    stopped = in_threads(act)
    assert (stopped == [8, 8]) is together


# --- the noise ---

MANY = 6000


class EqualSeeds(PrivacySession):
    """Each process draws for its own rows, from one seed."""

    def release(self, mechanism: Mechanism, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        return replace(mechanism, noise=Seeded(seed=3)).answer(self.shape, *tensors)


class OwnShare(PrivacySession):
    """Each process releases for itself, of a batch that is its share."""

    def release(self, mechanism: Mechanism, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        return mechanism.answer(Shape(len(tensors[0]), CLASSES), *tensors)


@pytest.mark.parametrize(("kind", "holds"), [(PrivacySession, True), (EqualSeeds, False), (OwnShare, False)])
def test_noise_has_the_law_of_one_process(kind: type[PrivacySession], holds: bool) -> None:
    def act(processes: Processes) -> torch.Tensor:
        session = opened(NoisyGradients(norm_bound=1.0), processes, None, rows=MANY, kind=kind)
        return asked(session, torch.zeros(MANY // 2, CLASSES, dtype=torch.float64))

    shares = in_threads(act)  # each has the deviation, and no part of it is drawn twice
    assert (all(has_deviation(share, 100.0 / MANY) for share in shares) and not correlated(*shares)) is holds


@pytest.mark.parametrize("release", ["batch_mean", "batch_mean_rows"])
def test_one_mean_is_one_draw(release: Any) -> None:
    """Were it drawn in each process, whoever holds both would know it better than was paid for."""

    def act(processes: Processes) -> torch.Tensor:
        session = opened(NoisyGradients(release=release), processes, None)
        return asked(session, *gradients(ROWS // 2))

    first, second = in_threads(act)
    assert torch.equal(first, second) and torch.equal(first[0], first[-1])
