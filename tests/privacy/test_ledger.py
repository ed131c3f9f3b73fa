"""What is spent stays spent: through crashes, cut lines, copies, forks and several processes at once."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from privacy import Budget
from privacy.account import BudgetExceeded, PrivacyAccount
from privacy.accounting.composition import compose
from privacy.events import Gaussian
from privacy.identity import Training, new_training_id
from privacy.journal import LedgerError
from privacy.ledger import Ledger, identify
from privacy.plan import Charge, Plan
from privacy.published import RdpSlope

VOTE = Charge(release=Gaussian(mu=2**0.5 / 40))
STEP = Charge(release=Gaussian(mu=0.32), claim=RdpSlope(source="DPDFD Theorem 3", slope=5e-7), queries=256)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "teacher.ledger.jsonl"


def opened(path: Path | None, *, run: str = "one", data: str = "digits/train", block: int = 100) -> Ledger:
    return Ledger(path=path, private_data=data, run=run, block=block)


def spend(ledger: Ledger, count: int, charge: Charge = VOTE) -> None:
    for _ in range(count):
        ledger.charge(charge)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_settled_blocks_count_what_was_used_and_a_crash_the_whole_block(path: Path) -> None:
    proper = opened(path)
    spend(proper, 7)
    proper.sync()
    assert opened(path).counts() == {VOTE: 7}
    crashed = opened(path, run="two")
    spend(crashed, 3)
    assert crashed.counts(run="two") == {VOTE: 3}
    after = opened(path, run="three")
    assert after.counts() == {VOTE: 107}
    assert after.counts(run="two") == {VOTE: 100}
    assert after.runs() == ["one", "two"]


@given(st.lists(st.sampled_from(["vote", "step", "settle", "crash", "refresh"]), max_size=25), st.integers(1, 4))
def test_the_file_never_knows_less_than_was_released(tmp_path_factory: Any, acts: list[str], block: int) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = opened(path, block=block)
    made: Counter[Charge] = Counter()
    crashed = 0
    for number, act in enumerate(acts):
        if act == "settle" or act == "refresh":
            ledger.sync()
        elif act == "crash":
            ledger, crashed = opened(path, run=str(number), block=block), crashed + 1
        else:
            charge = VOTE if act == "vote" else STEP
            ledger.charge(charge)
            made[charge] += 1
        disk = opened(path, run="reader").counts()
        assert all(disk[charge] >= count for charge, count in made.items())
        assert all(ledger.counts()[charge] >= count for charge, count in made.items())
    ledger.sync()
    disk = opened(path, run="reader").counts()
    assert disk == ledger.counts()
    assert sum(disk.values()) <= sum(made.values()) + crashed * (block - 1)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_that_a_crash_cut_is_dropped_unless_only_its_end_is_missing(
    path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend(opened(path), 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    assert opened(path, run="two").counts() == ({VOTE: 100} if cut == 1 else {})
    assert path.stat().st_ino in synced
    assert path.read_bytes() == (whole if cut == 1 else whole[: whole.rfind(b"\n", 0, -1) + 1])
    spend(opened(path, run="three"), 1)
    assert opened(path, run="four").counts() == {VOTE: 200 if cut == 1 else 100}


RESERVE = {"event": "reserve", "block": "b", "run": "r", "count": 1, **VOTE.to_dict()}
SETTLE = {"event": "settle", "block": "that of the run", "used": 0}


@pytest.mark.parametrize(
    "damage",
    [
        *(b"not json\n", b"3\n", b"null\n", b"\n", b"\0\0\0\n", b"\xff\xfe\n"),
        {"event": "grant"},
        {"event": "open", "version": 3, "private_data": "digits/train"},
        *({**RESERVE, "count": count} for count in (0, 1.5, float("inf"))),
        *({**RESERVE, "release": release} for release in ({"kind": "magic"}, None)),
        *({**SETTLE, "used": used} for used in (101, -1)),
        {"event": "settle", "block": "settled", "used": 1},
        {**SETTLE, "block": "nobody"},
        {"event": "plan", "run": "r", "planned_calls": 1, "plan_changed": False, "planned_charges": [1]},
    ],
)
def test_a_damaged_line_is_refused_again_and_again(path: Path, damage: bytes | dict[str, Any]) -> None:
    watcher = opened(path, run="watcher")
    ledger = opened(path)
    for _ in range(2):
        ledger.sync()
        spend(ledger, 1)
    if isinstance(damage, dict):  # in its place in the chain
        blocks = {"settled": lines(path)[1]["block"], SETTLE["block"]: lines(path)[3]["block"]}
        line = {name: blocks.get(value, value) if name == "block" else value for name, value in damage.items()}
        damage = json.dumps({**line, "prev": ledger.head[2] if ledger.head else ""}).encode() + b"\n"
    with path.open("ab") as file:
        file.write(damage)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerError, match="is damaged at the line"):
            opened(path, run="two")
        with pytest.raises(LedgerError, match="is damaged"):
            watcher.sync()
        with pytest.raises(LedgerError, match="is damaged"):
            watcher.charge(VOTE)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"event": "settle"}, "the first line"),
        ({"private_data": "faces/train"}, r"is about 'faces/train', not 'digits/train'; set `ledger`"),
        ({"version": 2}, "has version 2, this code reads 3"),
    ],
)
def test_another_first_line_is_refused(path: Path, header: dict[str, Any], message: str) -> None:
    opened(path)
    path.write_text(json.dumps({**lines(path)[0], **header}) + "\n")
    with pytest.raises(LedgerError, match=message):
        opened(path)


def test_a_ledger_that_was_shortened_or_removed_is_refused(path: Path) -> None:
    ledger = opened(path, block=1)
    spend(ledger, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rstrip(b"\n").rfind(b"\n") + 1])
    with pytest.raises(LedgerError, match="has become shorter"):
        ledger.charge(VOTE)
    path.unlink()
    with pytest.raises(LedgerError, match="cannot be read or written"):
        ledger.charge(VOTE)
    assert not path.exists()


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_line_that_cannot_be_written_or_synced_tells_the_caller(
    path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend(ledger := opened(path, block=1), 1)
    write = os.write

    def fail(descriptor: int, data: bytes = b"") -> int:
        if failing == "fsync":
            raise OSError("I/O error")
        return write(descriptor, data[:9])

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(LedgerError, match=r"cut short; is the disk full|I/O error"):
            ledger.charge(VOTE)
    ledger.charge(VOTE)  # what was not synced counts where it arrived
    assert ledger.counts() == opened(path).counts() == {VOTE: 3 if failing == "fsync" else 2}


def test_unwritable_places_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "ledger.jsonl"):
        with pytest.raises(LedgerError, match=r"cannot be read or written .* set `ledger` to a file"):
            opened(place)


def _spend_and_settle(ledger: Ledger) -> None:
    spend(ledger, 6)
    ledger.sync()


@pytest.mark.parametrize("way", ["copy", "pickle", "fork"])
def test_a_copy_does_not_spend_its_original_s_block_again(path: Path, way: str) -> None:
    spend(ledger := opened(path, block=10), 4)
    if way == "fork":
        child = multiprocessing.get_context("fork").Process(target=_spend_and_settle, args=(ledger,))
        child.start()
        child.join()
        assert child.exitcode == 0
    else:
        _spend_and_settle(copy.deepcopy(ledger) if way == "copy" else pickle.loads(pickle.dumps(ledger)))
    _spend_and_settle(ledger)
    assert opened(path, run="reader").counts() == {VOTE: 16}


def test_restoring_takes_the_larger_of_file_and_checkpoint(path: Path) -> None:
    spend(opened(path, block=10), 10)
    resumed = opened(path, block=10)
    resumed.restore({VOTE: 4, STEP: 3})
    assert resumed.counts() == {VOTE: 10, STEP: 3}
    resumed.restore({VOTE: 12})
    resumed.restore({VOTE: 12})
    assert resumed.counts() == opened(path).counts() == {VOTE: 12, STEP: 3}
    spend(resumed, 1)
    assert resumed.counts() == {VOTE: 13, STEP: 3}


def _run(path: Path, run: str, target: float | None) -> int:
    account = PrivacyAccount(ledger=opened(path, run=run, block=7), budget=Budget(target_epsilon=target))
    made = 0
    with suppress(BudgetExceeded):
        while made < 50:
            account.ledger.charge(VOTE, afford=account.grant)
            made += 1
    account.ledger.sync()
    return made


@pytest.mark.parametrize("target", [None, compose({VOTE.release: 50}, 1e-5).epsilon])
def test_processes_that_write_at_once_lose_and_overspend_nothing(path: Path, target: float | None) -> None:
    runs = ["run0", "run1", "run2", "run3"]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        made = pool.starmap(_run, [(path, run, target) for run in runs], chunksize=1)
    ledger = opened(path, run="reader")
    assert [ledger.counts(run=run)[VOTE] for run in runs] == made
    assert sum(made) == 200 if target is None else 50 - 3 * 6 <= sum(made) <= 50


def test_what_may_be_reserved_is_asked_with_the_file_locked_and_read(path: Path) -> None:
    """The mutant asks first and locks afterwards: another run spends what it was granted."""
    limit = 10

    def left(ledger: Ledger) -> int:
        return limit - sum(ledger.counts().values())

    first, second = opened(path, run="first", block=10), opened(path, run="second", block=10)
    first.charge(VOTE, afford=lambda _: left(first))
    with pytest.raises(ValueError, match="count must be 1 or more and a whole number, got 0"):
        second.charge(VOTE, afford=lambda _: left(second))
    assert sum(opened(path, run="reader").counts().values()) == limit

    other = path.with_name("copy.jsonl")
    first, second = opened(other, run="first", block=10), opened(other, run="second", block=10)
    granted = left(first), left(second)
    first.charge(VOTE, afford=lambda _: granted[0])
    second.charge(VOTE, afford=lambda _: granted[1])
    assert sum(opened(other, run="reader").counts().values()) > limit


def test_an_older_one_of_two_saved_states_is_not_gone_on_from(path: Path) -> None:
    ledger, training = opened(path), new_training_id()
    ledger.note_saved(training, "first", after=None)
    opened(path).note_saved(training, "second", after="first")
    with pytest.raises(LedgerError, match="another fit has gone on from the same checkpoint"):
        ledger.note_saved(training, "third", after="first")  # a second teacher, with the bound of one
    ledger.note_saved(training, "third", after="second")


def test_a_training_whose_division_was_not_written_is_compared_when_it_is_used_again(path: Path) -> None:
    ledger, first = opened(path), new_training_id()
    ledger.register(Training(first, kind="Teacher"))
    ledger.register(Training(new_training_id(), kind="Teacher", partition={"settings": {"test_fraction": 0.2}}))
    with pytest.raises(LedgerError, match="test_fraction of the data"):
        ledger.register(Training(first, kind="Teacher", partition={"settings": {"test_fraction": 0.5}}))


def test_weights_keep_their_identity(path: Path) -> None:
    identity = identify(opened(path), b"weights")
    assert identify(opened(path), b"weights") == identity != identify(opened(path), b"other weights")


# A line is checked before it is written.


def test_a_line_that_nobody_could_read_is_not_written(path: Path) -> None:
    spend(ledger := opened(path, block=1), 2)
    ledger.register(Training(training := new_training_id(), kind="Teacher"))
    whole = path.read_bytes()
    hostile: list[Callable[[], object]] = [
        lambda: ledger.write_plan(lambda before: Plan(10**400, {VOTE: 10})),
        lambda: spend(opened(path, run=training, block=1), 1),  # a run that is called as a training is
    ]
    for act in hostile:
        with pytest.raises((ValueError, LedgerError)):
            act()
        assert path.read_bytes() == whole
        assert opened(path, run="reader").counts() == {VOTE: 2}
