"""The append-only file in which every release of private information is recorded before it is made.

A checkpoint does not know what was spent after it was saved: a run that crashes and resumes from it has spent more than
it remembers. The ledger therefore belongs to the **private data**, not to a run: DP-SGD trainings, ensembles and all
queries of all teachers of that data stand in one file, which is written and synced to disk before the noise of a
release is drawn. Each charge names the *training* of its teacher, so that what bounds one teacher is never applied to
another.

Releases are reserved in blocks: a line that says "up to n releases of this kind" is synced, and the next n releases
need no further input or output. A run that ends properly settles its last block for what it used; any other counts as
having spent the whole block.

A run that knows how many releases it will make records its plan before the first one: stopping it early may depend on
what they showed, so it has spent the plan.

Each line holds the hash of the line before it, and checkpoints keep the hash of the last line that they saw: a file
that was edited, cut or replaced is reported as such. The file's owner can still write a new one: the chain reveals
accidents and edits; it is not a signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from privacy.checks import check_count
from privacy.events import Release
from privacy.identity import Head, Training, new_training_id
from privacy.journal import Journal, LedgerError
from privacy.plan import Charge, Plan, unmade

Block: TypeAlias = tuple[str, Charge, int]
"""What one line reserves: the block's identity, a charge, and how many of it."""
Write: TypeAlias = Callable[[dict[str, Any]], None]
"""Writes a line, syncs it and counts what it says."""

VERSION = 3

RECORDS = "records"
"""Takes the place of a training in charges for the private records themselves, not for a teacher."""


@dataclass
class LedgerState:
    """What a ledger holds.

    Attributes:
        path: Its file, for messages; None in memory.
        private_data: Name of the data, which that of the file must equal unless it is `renamed`.
        key: Key of the hashes by which teachers without an identity are recognised; see `identify`.
        id: Random, to tell a file from one that replaces it.
        renamed: Whether the data may have another name in the file, whose name is then taken.
        totals: Charges of each run and training.
        blocks: What lines reserved and no other has settled: the run, the charge, and how many of it.
        plans: Plans of runs.
        trainings: Settings of each training that decide which records are private.
        fingerprints: Identities of teachers, by keyed hash.
        saved: Token of the last saved state of trainings.
        filters: Target ε and δ of the privacy filters that runs went by.
        changes: Number of lines so far.
    """

    path: Path | None
    private_data: str
    key: str
    id: str
    renamed: bool = False
    totals: dict[str, Counter[Charge]] = field(default_factory=dict)
    blocks: dict[str, tuple[str, Charge, int]] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    trainings: dict[str, dict[str, Any]] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)
    filters: dict[str, tuple[float, float]] = field(default_factory=dict)
    changes: int = 0

    def counts(self, run: str | None = None) -> Counter[Charge]:
        """Charges of one run or training, or of all runs."""
        total: Counter[Charge] = Counter()
        for owner, counts in self.totals.items():
            if owner == run or (run is None and owner not in self.trainings):
                total.update(counts)
        return total

    def unmade(self, run: str, *, made: Counter[Charge] | None = None) -> Counter[Charge]:
        """What a run planned and has not released; `made` are its releases, if others than its reserved ones."""
        plan, made = self.plans.get(run), +self.counts(run) if made is None else made
        return unmade(plan.charges, made) if plan is not None and made else Counter()

    def raised(self, counts: Mapping[Charge, int], *, run: str) -> Iterator[dict[str, Any]]:
        """Lines that raise what a run or a training has spent to at least `counts`."""
        for charge, count in counts.items():
            if (more := count - self.totals.get(run, Counter())[charge]) > 0:
                yield _reserve_line(secrets.token_hex(8), charge, more, run=run)

    def take(self, line: Mapping[str, Any], *, dry: bool = False) -> None:
        """Checks a line and takes it over; `dry` only checks.

        Raises:
            ValueError: Nothing could be said of a ledger with this line.
            LedgerError: It begins a ledger of another version, or about other data.
        """
        match line["event"]:
            case "open":
                key, identity, name = str(line["key"]), str(line["ledger"]), str(line["private_data"])
                bytes.fromhex(key)
                if line["version"] != VERSION:
                    raise LedgerError(
                        f"the privacy ledger {self.path} has version {line['version']}, this code reads {VERSION}"
                    )
                if name != self.private_data and not self.renamed:
                    raise LedgerError(
                        f"the privacy ledger {self.path} is about {name!r}, not {self.private_data!r}; set `ledger` to "
                        "the file that belongs to this data"
                    )
                if not dry:
                    self.key, self.id, self.private_data = key, identity, name
            case "reserve":
                block, run, charge = str(line["block"]), self._run(line), Charge.from_dict(line)
                count = check_count("count", line["count"], minimum=1)
                if block in self.blocks:
                    raise ValueError(f"block {block} is reserved twice")
                if not dry:
                    self.blocks[block] = (run, charge, count)
                    self.totals.setdefault(run, Counter())[charge] += count
            case "settle":
                block, used = str(line["block"]), check_count("used", line["used"])
                run, charge, count = self.blocks[block]
                if used > count:
                    raise ValueError(f"{used} of {count} releases used")
                if not dry:
                    del self.blocks[block]
                    self.totals[run][charge] -= count - used
            case "plan":
                run, plan = self._run(line), Plan.from_dict(line)
                if not dry:
                    self.plans[run] = plan
            case "training":
                training, division, fingerprint = str(line["training"]), dict(line["division"]), line["fingerprint"]
                # A run of this name would no longer count as a run.
                if training in self.totals and training not in self.trainings:
                    raise ValueError(f"{training} is a run, and cannot be a training as well")
                if not dry:
                    self.trainings[training] = division
                    if fingerprint is not None:
                        self.fingerprints[str(fingerprint)] = training
            case "saved":
                training, token = str(line["training"]), str(line["token"])
                if not dry:
                    self.saved[training] = token
            case "filters":
                run, budget = str(line["run"]), (float(line["target_epsilon"]), float(line["delta"]))
                if not dry:
                    self.filters[run] = budget
            case event:
                raise ValueError(f"unknown event {event!r}")
        self.changes += not dry

    def _run(self, line: Mapping[str, Any]) -> str:
        """The run of a line, or the training whose own releases it reserves."""
        run = str(line["run"])
        if run in self.trainings and (line.get("training") != run or line.get("queries")):
            raise ValueError(f"{run} is a training, and cannot be a run as well")
        return run


class Ledger:
    """Counts of releases per run, on disk and in memory. Not thread-safe.

    Args:
        path: The file, created if missing; None keeps the ledger in memory, where it does not survive a crash and no
            other process sees it.
        private_data: Public name of the data that the releases depend on, such as `MNIST/train`.
        run: Identity of the charging run, kept by its checkpoints.
        block: Number of releases that one synced line reserves.
        renamed: Whether the file may be about data of another name, since it was found otherwise.

    Attributes:
        path: The file, links followed.
        notes: What a guarantee has to say about its place; see `LedgerPlace`.

    Raises:
        LedgerError: The file is damaged, of another version, about other data, or in a folder that cannot be written.
        ValueError: `block` is below 1.
    """

    def __init__(
        self, *, path: str | Path | None, private_data: str, run: str, block: int = 100, renamed: bool = False
    ) -> None:
        self.run = run
        self.notes: tuple[str, ...] = ()
        self.block = check_count("block", block, minimum=1)
        # Resolved, so that neither a change of the working folder nor a symbolic link leads to another ledger.
        self.path = None if path is None else Path(path).resolve()
        key, identity = secrets.token_hex(16), secrets.token_hex(8)
        self._state = LedgerState(self.path, private_data, key=key, id=identity, renamed=renamed)
        self._journal = Journal(self.path, self._state.take)
        self._unmade_by_others: tuple[int, str, Counter[Charge]] | None = None
        self._open: Block | None = None
        self._used = 0
        self._process: int | None = os.getpid()
        with Ledger._locked(self):  # reads the file; a replica has none
            pass

    @property
    def private_data(self) -> str:
        """Name of the data in the file."""
        return self._state.private_data

    def __getstate__(self) -> dict[str, Any]:
        """A copy must not use up the open block of its original."""
        return {**self.__dict__, "_process": None}

    def counts(self, *, run: str | None = None) -> Counter[Charge]:
        """Charges for releases of teachers so far: of one run, or of all runs in the ledger if `run` is None.

        What DP-SGD trainings themselves released is in `releases_by_training`. This object's open block counts for what
        it used; every other block for all that it reserved.
        """
        total = self._state.counts(run)
        block = self._open_block()
        if block is not None and run in (None, self.run):
            total[block[1]] -= block[2] - self._used
        return +total

    def unmade(self, *, others: bool = False) -> Counter[Charge]:
        """What runs planned but have not released, which counts wherever whole runs are counted.

        The plan of a run that has released nothing costs nothing.

        Args:
            others: Leave out this object's own run.
        """
        # Cached: called at each step, while the plans of others seldom change.
        if self._unmade_by_others is None or self._unmade_by_others[:2] != (self._state.changes, self.run):
            rest = (self._state.unmade(owner) for owner in self._state.plans if owner != self.run)
            self._unmade_by_others = (self._state.changes, self.run, sum(rest, Counter[Charge]()))
        theirs = self._unmade_by_others[2]
        return Counter(theirs) if others else theirs + self._state.unmade(self.run, made=self.counts(run=self.run))

    def write_plan(self, make: Callable[[Plan | None], Plan]) -> Plan:
        """Records this run's plan, and returns it.

        Args:
            make: Maps the recorded plan to the one to record. It is called with the file locked and all of it read, and
                may only read this ledger.

        Raises:
            LedgerError: The line could not be written: nothing may be released.
        """
        with self._locked() as write:
            before = self._state.plans.get(self.run)
            if (plan := make(before)) != before:
                write({"event": "plan", "run": self.run, **plan.to_dict()})
            return plan

    def runs(self) -> list[str]:
        """Identities of the runs that have charged, in the order of their first charges."""
        return [owner for owner in self._state.totals if owner not in self._state.trainings and self.counts(run=owner)]

    def releases_of(self, training: str | None) -> Counter[Release]:
        """What the training of a teacher itself released: its planned DP-SGD steps, or nothing."""
        releases: Counter[Release] = Counter()
        if training in self._state.trainings:
            for charge, count in self._state.counts(training).items():
                releases[charge.release] += count
        return releases

    def releases_by_training(self) -> dict[str, Counter[Release]]:
        """Returns `releases_of` of every known training, by identity."""
        return {training: self.releases_of(training) for training in self._state.trainings}

    @property
    def version(self) -> tuple[str, int]:
        """Identity of the file, and the number of its lines so far."""
        return self._state.id, self._state.changes

    @property
    def head(self) -> Head | None:
        """What a checkpoint keeps of the ledger; None for one in memory."""
        lines = self._journal.hashes
        return (self._state.id, len(lines), lines[-1]) if lines else None

    def verify_head(self, head: Head | None, *, whose: str) -> bool:
        """Whether this is the ledger that `whose` saw; False for another one.

        Raises:
            LedgerError: It is the same ledger, with lines missing or replaced.
        """
        if head is None or self.path is None:
            return True
        identity, lines, digest = str(head[0]), int(head[1]), str(head[2])
        if identity != self._state.id:
            return False
        hashes = self._journal.hashes
        if not 1 <= lines <= len(hashes) or hashes[lines - 1] != digest:
            raise LedgerError(
                f"the privacy ledger {self.path} is not what {whose} saw of it: it had {lines} line(s) then, and has "
                f"{len(hashes)} now, line {lines} of which is "
                f"{'missing' if lines > len(hashes) else 'another one'}. It was cut or edited, and what was "
                "spent cannot be known. Restore the file, or do not publish anything more from this data"
            )
        return True

    def register(self, training: Training) -> None:
        """Records a training and what it releases itself; by DP-SGD, before its first step.

        Known releases never shrink: the larger count holds.

        Raises:
            LedgerError: The lines could not be written: nothing may be released. Or other records were private in
                another training, and no ε covers both.
        """
        with self._locked() as write:
            for other, before in self._state.trainings.items():
                for name, now in training.division.items():
                    if other != training.id and before.get(name, now) != now:
                        raise LedgerError(
                            f"{name} of the data is {now!r}, and the privacy ledger {self.path} has {before[name]!r} "
                            f"for training {other}: which records are private, or whose they are, would differ, and no "
                            f"epsilon covers both. Set {name} to what it was; other records need a folder and a name "
                            "of their own"
                        )
            if training.id not in self._state.trainings:
                write(_training_line(training.id, training.kind, division=training.division))
            released = training.releases or {}
            if not released and self.releases_of(training.id):
                raise LedgerError(
                    f"training {training.id} was by DP-SGD as the privacy ledger {self.path} has it, and the file at "
                    "hand says that nothing bounds it: it was trained on without noise, or changed. Train it again"
                )
            charges = {Charge(release=one, queries=0, training=training.id): count for one, count in released.items()}
            for line in self._state.raised(charges, run=training.id):
                write(line)

    def saved(self, training: str) -> str | None:
        """Token of the last saved state of a training; None if none was saved."""
        return self._state.saved.get(training)

    def note_saved(self, training: str, token: str, *, after: str | None) -> None:
        """Records that a state of a training is being saved, so that only a fit resumed from it is the same training.

        `after` is the token of the state that it continues; None for the first.

        Raises:
            LedgerError: Another fit has meanwhile continued the same state, or the line could not be written.
        """
        with self._locked() as write:
            if self.saved(training) != after:
                raise LedgerError(
                    f"another fit has gone on from the same checkpoint of training {training}: the two are different "
                    "teachers. Start again: this one will then have an identity of its own"
                )
            write({"event": "saved", "training": training, "token": token})

    def go_by_filters(self, budget: tuple[float, float]) -> None:
        """Records target ε and δ of this run's privacy filters, which must be fixed before the first release.

        Raises:
            LedgerError: A run, perhaps this one, has released something under another budget: which one was set may
                depend on what that showed, and then neither bounds anything.
        """
        with self._locked() as write:
            self.require_filters(budget)
            if self._state.filters.get(self.run) != budget:
                write({"event": "filters", "run": self.run, "target_epsilon": budget[0], "delta": budget[1]})

    def require_filters(self, now: tuple[float, float]) -> None:
        """Refuses another target ε and δ than those of a run that has released something; see `go_by_filters`."""
        filters = self._state.filters.items()
        for other in (budget for run, budget in filters if budget != now and self.counts(run=run)):
            raise LedgerError(
                f"target_epsilon is {now[0]:g} at delta={now[1]:g}, and a run in the privacy ledger {self.path} went "
                f"by {other[0]:g} at delta={other[1]:g}. A fully adaptive budget is fixed before the first release: "
                "keep that one, or set fully_adaptive to false"
            )

    def charge(self, charge: Charge, times: int = 1, *, afford: Callable[[Charge], int] | None = None) -> None:
        """Counts a release. When this returns, the release is on disk and its noise may be drawn.

        Args:
            charge: The release.
            times: How often it is made.
            afford: Called before a block is reserved; returns how many releases of this kind it may hold, at least 1,
                or raises to refuse. It is called with the file locked and all of it read, so that no other process can
                spend what it grants; it may only read this ledger.

        Raises:
            LedgerError: The line could not be written: nothing may be released.
        """
        for _ in range(times):
            block = self._open_block()
            if block is None or block[1] != charge or self._used >= block[2]:
                with self._locked() as write:
                    count = self.block if afford is None else min(self.block, afford(charge))
                    line = _reserve_line(secrets.token_hex(8), charge, count, run=self.run)
                    write(line)
                    self._open = line["block"], charge, count
            self._used += 1

    def sync(self) -> None:
        """Closes the open block for what it used, as at a proper end, and reads what other runs have appended.

        Raises:
            LedgerError: The file could not be read or written: the whole block stays spent, as after a crash.
        """
        with self._locked():
            pass

    def restore(self, counts: Mapping[Charge, int]) -> None:
        """Raises this run's counts to at least `counts` of a checkpoint: the larger of the two holds."""
        with self._locked() as write:
            for line in self._state.raised(counts, run=self.run):
                write(line)

    def _open_block(self) -> Block | None:
        # A fork or a copy would spend each release of the block a second time.
        if self._process != os.getpid():
            self._open, self._used, self._process = None, 0, os.getpid()
        return self._open

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Write]:
        """Locks the file, reads what others wrote, settles the open block, and yields what writes lines."""
        with self._journal.locked():
            self._journal.read()
            if self.path is not None and not self._journal.hashes:
                known = {"private_data": self.private_data, "ledger": self._state.id, "key": self._state.key}
                self._journal.append({"event": "open", "version": VERSION, **known})
            block, used = self._open_block(), self._used
            self._open, self._used = None, 0
            if block is not None and used < block[2]:
                self._journal.append({"event": "settle", "block": block[0], "used": used})
            yield self._journal.append


def identify(ledger: Ledger, digest: bytes, *, kind: str = "teacher") -> str:
    """Identity of a teacher whose file names none: equal for equal weights, by a keyed hash in the ledger.

    `digest`, a hash of the weights, is not stored: recognising given weights takes the key, which only the ledger
    holds.
    """
    with ledger._locked() as write:
        fingerprint = fingerprint_of(ledger._state.key, digest)
        found = ledger._state.fingerprints.get(fingerprint)
        if found is None:
            found = new_training_id()
            write(_training_line(found, kind, fingerprint=fingerprint))
        return found


def fingerprint_of(key: str, digest: bytes) -> str:
    """Hash of weights with a ledger's key, by which it recognises them."""
    return hmac.new(bytes.fromhex(key), digest, hashlib.sha256).hexdigest()


def _reserve_line(block: str, charge: Charge, count: int, *, run: str) -> dict[str, Any]:
    """The line that reserves a block."""
    return {"event": "reserve", "block": block, "run": run, "count": count, **charge.to_dict()}


def _training_line(training: str, kind: str, *, division: Any = None, fingerprint: str | None = None) -> dict[str, Any]:
    known = {"kind": kind, "fingerprint": fingerprint, "division": division or {}}
    return {"event": "training", "training": training, **known}
