"""What is spent stays spent: through crashes, cut lines, copies, forks and several processes at once."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import random
import shutil
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
from privacy.events import Gaussian, SampledGaussian
from privacy.identity import Training, new_training_id
from privacy.journal import Journal, LedgerError
from privacy.ledger import Ledger, identify
from privacy.ledger_state import LedgerState
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
        with pytest.raises(LedgerError, match=r"cannot be read or written .* Set `ledger` to a file"):
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


def _run(path: Path, run: str, votes: int, target: float | None, queue: Any) -> None:
    account = PrivacyAccount(ledger=opened(path, run=run, block=7), budget=Budget(target_epsilon=target))
    made = 0
    try:
        for _ in range(votes):
            account.ledger.charge(VOTE, afford=account.grant)
            made += 1
    except BudgetExceeded:
        pass
    account.ledger.sync()
    queue.put((run, made))


def together(path: Path, votes: int, target: float | None) -> dict[str, int]:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_run, args=(path, f"run{i}", votes, target, queue)) for i in range(4)]
    for process in processes:
        process.start()
    made = dict(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return made


@pytest.mark.parametrize("target", [None, compose({VOTE.release: 50}, 1e-5).epsilon])
def test_processes_that_write_at_once_lose_and_overspend_nothing(path: Path, target: float | None) -> None:
    made = together(path, 50, target)
    ledger = opened(path, run="reader")
    assert {run: ledger.counts(run=run)[VOTE] for run in made} == made
    assert sum(made.values()) == 200 if target is None else 50 - 3 * 6 <= sum(made.values()) <= 50


def test_what_may_be_reserved_is_asked_with_the_file_locked_and_read(path: Path) -> None:
    """The mutant asks first and locks afterwards: another run spends what it was granted."""
    limit = 10

    def left(ledger: Ledger) -> int:
        return limit - sum(ledger.counts().values())

    first, second = opened(path, run="first", block=10), opened(path, run="second", block=10)
    first.charge(VOTE, afford=lambda _: left(first))
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, got 0"):
        second.charge(VOTE, afford=lambda _: left(second))
    assert sum(opened(path, run="reader").counts().values()) == limit

    other = path.with_name("copy.jsonl")
    first, second = opened(other, run="first", block=10), opened(other, run="second", block=10)
    granted = left(first), left(second)
    first.charge(VOTE, afford=lambda _: granted[0])
    second.charge(VOTE, afford=lambda _: granted[1])
    assert sum(opened(other, run="reader").counts().values()) > limit


def test_a_ledger_of_other_records_is_not_absorbed(path: Path) -> None:
    def trained(file: Path, name: str, fraction: float) -> Ledger:
        ledger, partition = opened(file, data=name), {"settings": {"test_fraction": fraction}}
        ledger.register(Training(new_training_id(), kind="Teacher", partition=partition))
        return ledger

    here, other = trained(path, "here", 0.2), trained(path.with_name("other.jsonl"), "other", 0.5)
    here.absorb(trained(path.with_name("same.jsonl"), "same", 0.2))
    with pytest.raises(LedgerError, match=r"test_fraction of the data is 0\.5, and .* has 0\.2"):
        here.absorb(other)
    assert len(lines(path)) == 4  # each training, and that the ledger of the same records is counted


@pytest.mark.parametrize("broken", [False, True])
def test_what_a_run_spent_with_a_copy_of_its_ledger_adds_to_what_it_spent_here(broken: bool, path: Path) -> None:
    copied = path.with_name("copy.jsonl")
    spend(first := opened(path, block=10), 100)
    first.sync()
    shutil.copy(path, copied)  # to another machine, on which the run's checkpoint is resumed as well
    for file, count, of_crashed in ((path, 200, 3), (copied, 150, 0)):
        resumed = opened(file, block=10)
        resumed.restore({VOTE: 100})
        spend(resumed, count)
        resumed.sync()
        spend(opened(file, block=10), of_crashed)
    for _ in range(2):  # it is repeated at every opening, in either direction
        here, other = opened(path, run="reader"), opened(copied, run="reader")
        if broken:
            other._state.blocks.clear()
        here.absorb(other)
        assert here.counts() == {VOTE: 310 if broken else 460}
        if not broken:
            other.absorb(here)
            assert other.counts() == {VOTE: 460}


@pytest.mark.parametrize("lines", range(6))
def test_plans_do_not_shrink_where_joining_is_interrupted(
    lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some of its lines; blocks that were known already no longer said that both had gone on."""
    append, left = Journal.append, [0]

    def dies(journal: Journal, *given: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        append(journal, *given)

    for killed in (False, True):
        path, copied = (tmp_path / f"{name}{killed}.jsonl" for name in ("here", "copy"))
        for file, count in ((path, 10), (copied, 20), (path, 30)):
            if file is copied:
                shutil.copy(path, copied)
            ledger = opened(file, block=10)
            ledger.write_plan(lambda before: before or Plan(100, {VOTE: 100}))
            spend(ledger, count)
            ledger.sync()
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            if killed:
                patch.setattr(Journal, "append", dies)
            left[0] = lines
            opened(path, run="reader").absorb(opened(copied, run="reader"))
        (here := opened(path, run="reader")).absorb(opened(copied, run="reader"))
        assert here.counts() == {VOTE: 60}
        assert here.unmade()[VOTE] >= 130, "60 are left here, and 70 there"
        assert killed or here.unmade()[VOTE] == 130


def test_a_training_that_went_on_in_a_copy_as_well_is_two_teachers(path: Path) -> None:
    copied, training = path.with_name("copy.jsonl"), new_training_id()
    trained = Training(training, kind="DPSGDTeacher", releases={SampledGaussian(1.0, 0.01): 100})
    here = opened(path)
    here.register(trained)
    here.note_saved(training, "first", after=None)
    shutil.copy(path, copied)
    here.note_saved(training, "second", after="first")
    other = opened(copied)
    here.absorb(other)  # it is only behind
    other.note_saved(training, "another", after="first")
    with pytest.raises(LedgerError, match=r"went on from one state both in .* two teachers"):
        here.absorb(other)


def test_a_checkpoint_that_a_copy_went_on_from_is_an_older_one_when_the_copy_is_gone(path: Path) -> None:
    copied, training = path.with_name("copy.jsonl"), new_training_id()
    here = opened(path)
    here.register(Training(training, kind="DPSGDTeacher", releases={SampledGaussian(1.0, 0.01): 100}))
    here.note_saved(training, "first", after=None)
    shutil.copy(path, copied)
    opened(copied).note_saved(training, "second", after="first")
    other = opened(copied)
    for _ in range(2):
        here.absorb(other)
    copied.unlink()
    assert opened(path).saved(training) == "second"
    with pytest.raises(LedgerError, match="another fit has gone on from the same checkpoint"):
        here.note_saved(training, "third", after="first")  # a second teacher, with the bound of one
    here.note_saved(training, "third", after="second")


def test_a_training_whose_division_was_not_written_is_compared_when_it_is_used_again(path: Path) -> None:
    ledger, first = opened(path), new_training_id()
    ledger.register(Training(first, kind="Teacher"))
    ledger.register(Training(new_training_id(), kind="Teacher", partition={"settings": {"test_fraction": 0.2}}))
    with pytest.raises(LedgerError, match="test_fraction of the data"):
        ledger.register(Training(first, kind="Teacher", partition={"settings": {"test_fraction": 0.5}}))


# Two ledgers of the same data become one.


def test_a_ledger_that_another_one_counts_leads_to_it(path: Path) -> None:
    other = path.with_name("other.jsonl")
    spend(first := opened(path, run="first", block=1), 3)
    spend(second := opened(other, run="second", data="digits again", block=1), 4)
    first.lead_to(second)
    spend(first, 10)  # which is open, and goes on there
    spend(opened(path, run="third", block=1), 100)
    for file in (path, other):
        found = Ledger(path=file, private_data="digits/train", run="reader", renamed=True)
        assert found.counts()[VOTE] == 117
        assert (found.path, found.private_data, found.absorbed) == (other, "digits again", [str(path)])
    assert [line["event"] for line in lines(path)[4:]] == ["moved"]


def test_a_checkpoint_s_ledger_may_have_become_part_of_another_one(path: Path) -> None:
    spend(first := opened(path, block=1), 2)
    head, later = first.head, opened(path.with_name("later.jsonl"))
    assert head is not None and not later.verify_head(head, whose="the checkpoint")
    spend(copied := opened(Path(shutil.copy(path, path.with_name("copy.jsonl"))), run="copy"), 1)
    copied.sync()
    of_copy = copied.head
    copied.lead_to(first)
    first.lead_to(middle := opened(path.with_name("middle.jsonl")))
    middle.lead_to(later)
    assert later.verify_head(head, whose="the checkpoint")
    assert later.verify_head(of_copy, whose="a checkpoint of its copy")
    other = (head[0], head[1], "0" * 32)
    assert not later.verify_head(other, whose="the checkpoint"), "it saw a line of a copy that nobody counted"


def test_a_ledger_that_is_named_and_not_found_is_said_to_be_lost(path: Path) -> None:
    there, away, later = (path.with_name(f"{name}.jsonl") for name in ("there", "away", "later"))
    opened(path).lead_to(opened(there))
    spend(opened(path, run="counted there", block=1), 5)
    there.rename(away)
    opened(there, run="a new one in its place").sync()
    spend(alone := opened(path, run="counted here", block=1), 7)
    assert alone.path == path and alone.counts() == {VOTE: 7}
    assert alone.lost, "its epsilon leaves out what stands in a ledger that is not there"
    away.rename(there)  # the disk is back
    assert (found := opened(path, run="reader")).path == there and not found.lost
    assert found.counts() == {VOTE: 12}
    moved = opened(there.rename(path.with_name("moved.jsonl")))
    opened(path).lead_to(moved)
    assert opened(path).path == moved.path and not moved.lost, "its owner shows where it is now"
    moved.path.unlink()
    opened(path).lead_to(end := opened(later))
    assert end.lost and opened(later, run="reader").lost


def _lead(first: Path, second: Path, run: str) -> None:
    for _ in range(20):
        spend(one := opened(first, run=run, block=1), 1)
        one.lead_to(opened(second, run=run))


def test_processes_that_make_two_ledgers_one_in_both_directions_lose_nothing(path: Path) -> None:
    other, context = path.with_name("other.jsonl"), multiprocessing.get_context("fork")
    pairs = [(path, other, "one"), (other, path, "two"), (path, other, "three")]
    processes = [context.Process(target=_lead, args=pair) for pair in pairs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    ends = [opened(file, run="reader") for file in (path, other)]
    assert ends[0].path == ends[1].path and not ends[0].lost
    assert {run: ends[0].counts(run=run)[VOTE] for *_, run in pairs} == {"one": 20, "two": 20, "three": 20}


def test_all_that_copies_of_a_ledger_hold_is_counted_where_they_lead(path: Path) -> None:
    there, away = path.with_name("there.jsonl"), path.with_name("away.jsonl")
    opened(path).lead_to(opened(there))
    copies = [Path(shutil.copy(path, path.with_name(f"{name}.jsonl"))) for name in ("one", "two")]
    for times, used in enumerate((3, 4), start=1):
        there.rename(away)  # and the copies are used where it is not, more than once
        for copied in copies:
            spend(alone := opened(copied, run=f"{copied.stem} {times}", block=1), used)
            assert alone.lost and alone.path == copied
        away.rename(there)
        counted = [opened(copied, run="reader").counts()[VOTE] for copied in copies][-1]
        assert counted == 2 * sum((3, 4)[:times])
        assert opened(there).verify_head(alone.head, whose="a checkpoint of the second copy")
        assert opened(path, run="reader").counts()[VOTE] == counted
    (last := opened(there)).lead_to(opened(path.with_name("last.jsonl")))
    assert last.verify_head(alone.head, whose="a checkpoint of the second copy")
    there, size = last.path or there, (last.path or there).stat().st_size
    assert opened(copies[0]).path == there and there.stat().st_size == size, "what is known is not written again"


def _forgotten(folder: Path, draw: random.Random) -> set[str]:
    """Runs that a ledger was seen to count and then lacks, without a word of a loss, after random operations."""
    seen: dict[Path | None, set[str]] = {}

    def look(place: Path) -> set[str]:
        ledger = Ledger(path=place, private_data="digits/train", run="reader", renamed=True)
        runs = set(ledger.runs())
        missing = set() if ledger.lost else seen.get(place, set()) - runs
        seen.update({one: seen.get(one, set()) | runs for one in (place, ledger.path)})
        return missing

    for number in range(30):
        there = sorted(folder.glob("*.jsonl"))
        free = [place for place in (folder / f"{name}.jsonl" for name in "abcdefgh") if place not in there]
        what = draw.choice(["charge", "charge", "lead", "lead", "absorb", "move", "move", "look"])
        if len(there) < 2 or (what == "charge" and len(there) < 4 and draw.random() < 0.3):
            spend(opened(place := draw.choice(free), run=f"run {number}", block=1), 1)
            there.append(place)
        first, second = draw.sample(there, 2) if len(there) > 1 else there * 2
        if what == "charge":
            spend(opened(first, run=f"run {number}, too", block=1), 1)
        elif what == "move":
            first.rename(to := draw.choice(free))
            seen[to], first = seen.pop(first, set()), to
        elif what == "lead":
            opened(first).lead_to(opened(second))
        elif what == "absorb" and (here := opened(first)).path != (other := opened(second)).path:
            here.absorb(other)
        if missing := look(first) | (look(second) if second.exists() else set()):
            return missing
    return set()


@pytest.mark.parametrize("broken", [False, True])
def test_no_ledger_forgets_what_it_counted_wherever_others_are_moved(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    take = LedgerState.take
    if broken:
        monkeypatch.setattr(LedgerState, "take", lambda state, line, **dry: take(state, {**line, "lost": False}, **dry))
    found = []
    for seed in range(60):
        (folder := tmp_path / str(seed)).mkdir()
        found.append(_forgotten(folder, random.Random(seed)))
    assert any(found) is broken


def test_weights_keep_their_identity_where_their_ledger_leads(path: Path) -> None:
    here, there = opened(path), opened(path.with_name("other.jsonl"))
    identity = identify(here, b"weights")
    here.lead_to(there)
    assert identify(there, b"weights") == identity
    assert identify(there, b"other weights") != identity


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


def test_copies_that_lead_to_each_other_are_one_of_which_something_may_be_lost(path: Path) -> None:
    """From wherever they are opened; and they can still lead to another one."""
    ledger = opened(path)
    copied = Path(shutil.copy(path, path.with_name("copy.jsonl")))
    for one, to in ((path, copied), (copied, path)):
        with opened(one)._locked(follow=False) as write:
            write({"event": "moved", "ledger": ledger._state.id, "path": str(to)})
    for number, one in enumerate((path, copied, path)):
        spend(found := opened(one, run=f"run {number}", block=1), 1)
        assert found.path == copied and found.lost and found.counts() == {VOTE: number + 1}
    before = copied.stat().st_size
    assert opened(path).lost and copied.stat().st_size == before
    opened(path).lead_to(end := opened(path.with_name("end.jsonl")))
    assert all(opened(one).path == end.path and opened(one).counts() == {VOTE: 3} for one in (path, copied))
    assert end.lost
