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
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from privacy.checks import check_count
from privacy.events import Release
from privacy.identity import Head, Training, UnnamedTraining, new_training_id
from privacy.journal import Journal, LedgerError
from privacy.plan import Charge, Plan, unmade

Block: TypeAlias = tuple[str, Charge, int]
"""What one line reserves: the block's identity, a charge, and how many of it."""
Append: TypeAlias = Callable[[dict[str, Any]], None]
"""Writes one line, syncs it and counts what it says."""

_VERSION = 2
LEDGERS = "TRANSCRIPTION_LEDGERS"
"""Environment variable that names the folder of all ledgers."""
RECORDS = "records"
"""Takes the place of a training in charges for the private records themselves, not for a teacher."""


class Ledger:
    """Counts of releases per run, on disk and in memory. Not thread-safe.

    Args:
        path: The file, created if missing; None keeps the ledger in memory, where it does not survive a crash and no
            other process sees it.
        private_data: Public name of the data that the releases depend on, such as `MNIST/train`.
        run: Identity of the charging run, kept by its checkpoints.
        block: Number of releases that one synced line reserves.

    Raises:
        LedgerError: The file is damaged, of another version, about other data, or in a folder that cannot be written.
        ValueError: `block` is below 1.
    """

    def __init__(self, *, path: str | Path | None, private_data: str, run: str, block: int = 100) -> None:
        # Resolved, so that neither a change of the working folder nor a symbolic link leads to another ledger.
        self.path = None if path is None else Path(path).resolve()
        self.private_data = private_data
        self.run = run
        self.block = check_count("block", block, minimum=1)
        self._totals: dict[str, Counter[Charge]] = {}
        self._blocks: dict[str, tuple[str, Charge, int]] = {}
        self._plans: dict[str, Plan] = {}
        self._unmade_by_others: tuple[int, str, Counter[Charge]] | None = None
        self._trainings: dict[str, str] = {}
        self._divisions: dict[str, dict[str, Any]] = {}
        self._fingerprints: dict[str, str] = {}
        self._settled: set[str] = set()
        self._saved: dict[str, list[str]] = {}
        self._key = secrets.token_hex(16)
        #: Random, to tell a file from one that replaces it.
        self.id = secrets.token_hex(8)
        self._journal = None if self.path is None else Journal(self.path)
        self._changes = 0
        self._open: Block | None
        self._used: int
        self._process: int | None
        self._become_another()
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        """A copy must not use up the open block of its original."""
        return {**self.__dict__, "_process": None}

    @property
    def durable(self) -> bool:
        """Whether the ledger survives a crash."""
        return self.path is not None

    def counts(self, *, run: str | None = None) -> Counter[Charge]:
        """Charges for releases of teachers so far: of one run, or of all runs in the ledger if `run` is None.

        What DP-SGD trainings themselves released is in `releases_by_training`. This object's open block counts for what
        it used; every other block for all that it reserved.
        """
        total: Counter[Charge] = Counter()
        for owner, counts in self._totals.items():
            if owner == run or (run is None and owner not in self._trainings):
                total.update(counts)
        block = self._open_block()
        if block is not None and run in (None, self.run):
            _, charge, count = block
            total[charge] -= count - self._used
        return +total

    def unmade(self, *, others: bool = False) -> Counter[Charge]:
        """What runs planned but have not released, which counts wherever whole runs are counted.

        The plan of a run that has released nothing costs nothing.

        Args:
            others: Leave out this object's own run.
        """
        # Cached: called at each step, while the plans of others seldom change.
        if self._unmade_by_others is None or self._unmade_by_others[:2] != (self._changes, self.run):
            total: Counter[Charge] = Counter()
            for owner in self._plans:
                if owner != self.run:
                    total.update(self._unmade_by(owner))
            self._unmade_by_others = (self._changes, self.run, total)
        theirs = self._unmade_by_others[2]
        return Counter(theirs) if others else theirs + self._unmade_by(self.run)

    def _unmade_by(self, run: str) -> Counter[Charge]:
        plan, made = self._plans.get(run), self.counts(run=run)
        return unmade(plan.charges, made) if plan is not None and made else Counter()

    def write_plan(self, make: Callable[[Plan | None], Plan]) -> None:
        """Records this run's plan.

        Args:
            make: Maps the recorded plan to the one to record. It is called with the file locked and all of it read, and
                may only read this ledger.

        Raises:
            LedgerError: The line could not be written: nothing may be released.
        """
        self.settle()
        with self._locked() as append:
            before = self._plans.get(self.run)
            plan = make(before)
            if plan != before:
                append({"event": "plan", "run": self.run, **plan.to_dict()})

    def runs(self) -> list[str]:
        """Identities of the runs that have charged, in the order of their first charges."""
        return [owner for owner in self._totals if owner not in self._trainings and self.counts(run=owner)]

    def releases_of(self, training: str) -> Counter[Release]:
        """What the training of a teacher itself released: its planned DP-SGD steps, or nothing."""
        releases: Counter[Release] = Counter()
        if training in self._trainings:
            for charge, count in self.counts(run=training).items():
                releases[charge.release] += count
        return releases

    def releases_by_training(self) -> dict[str, Counter[Release]]:
        """Returns `releases_of` of every known training, by identity."""
        return {training: self.releases_of(training) for training in self._trainings}

    def state_to_follow(self, *, since: int | None = None) -> dict[str, Any]:
        """State of `LedgerReplica` in the other processes of a run, by attribute.

        Args:
            since: `_changes` of the state that they have; counts are left out if they have not changed since.
        """
        self._open_block()
        names = ["run", "_changes", "_open", "_used"]
        names += ["_totals", "_trainings", "_saved", "_plans"] if since != self._changes else []
        return {**{name: getattr(self, name) for name in names}, "_followed_head": self.head}

    @property
    def head(self) -> Head | None:
        """What a checkpoint keeps of the current ledger; None for one in memory."""
        hashes = [] if self._journal is None else self._journal.hashes
        return (self.id, len(hashes), hashes[-1]) if hashes else None

    def verify_head(self, head: Head | None, *, whose: str) -> bool:
        """Whether this is the ledger that `whose` saw; False for another one, begun since.

        Raises:
            LedgerError: It is the same ledger, with lines missing or replaced.
        """
        if head is None or self._journal is None:
            return True
        identity, lines, digest = str(head[0]), int(head[1]), str(head[2])
        if identity != self.id:
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
        self.settle()
        with self._locked() as append:
            _require_division(self._divisions, training.id, training.division, self.path)
            if training.id not in self._trainings:
                self._append_training(append, training=training.id, kind=training.kind, division=training.division)
            released = training.releases or {}
            if not released and self.releases_of(training.id):
                raise LedgerError(
                    f"training {training.id} was by DP-SGD as the privacy ledger {self.path} has it, and the file at "
                    "hand says that nothing bounds it: it was trained on without noise, or changed. Train it again"
                )
            charges = {Charge(release=one, queries=0, training=training.id): count for one, count in released.items()}
            self._raise(append, charges, run=training.id)

    def saved(self, training: str) -> str | None:
        """Token of the last saved state of a training; None if none was saved."""
        return self._saved[training][-1] if training in self._saved else None

    def note_saved(self, training: str, token: str, *, after: str | None) -> None:
        """Records that a state of a training is being saved, so that only a fit resumed from it is the same training.

        `after` is the token of the state that it continues; None for the first.

        Raises:
            LedgerError: Another fit has meanwhile continued the same state, or the line could not be written.
        """
        self.settle()
        with self._locked() as append:
            if self.saved(training) != after:
                raise LedgerError(
                    f"another fit has gone on from the same checkpoint of training {training}: the two are different "
                    "teachers. Start again: this one will then have an identity of its own"
                )
            append({"event": "saved", "training": training, "token": token})

    def identify(self, digest: bytes, *, kind: str = "teacher") -> str:
        """Identity of a teacher whose file names none: equal for equal weights, by a keyed hash in this ledger.

        `digest`, a hash of the weights, is not stored: recognising given weights takes the key, which only the ledger
        holds.
        """
        self.settle()
        with self._locked() as append:
            fingerprint = _fingerprint(self._key, digest)
            if fingerprint not in self._fingerprints:
                self._append_training(append, training=new_training_id(), kind=kind, fingerprint=fingerprint)
            return self._fingerprints[fingerprint]

    def absorb(self, other: Ledger) -> None:
        """Counts here what another ledger holds about the same records, under another name or as a copy of this one.

        Each block of a run counts once, since a checkpoint may be resumed with either ledger; what is then left of both
        plans adds up. Otherwise the larger count and plan hold, so that this may be repeated at every opening.

        Raises:
            LedgerError: Other records were private in a training there than here, or it went on in both from one state:
                no ε covers both.
        """
        self.settle()
        with self._locked() as append:
            for training, kind in other._trainings.items():
                mine, theirs = (one._saved.get(training, []) for one in (self, other))
                if mine and theirs and mine[-1] not in theirs and theirs[-1] not in mine:
                    raise LedgerError(
                        f"training {training} went on from one state both in {self.path} and in {other.path}: two "
                        "teachers, and no epsilon covers both. Take the copy away, and publish nothing of its teacher"
                    )
                if training not in self._trainings:
                    _require_division(self._divisions, training, other._divisions[training], self.path)
                    self._append_training(append, training=training, kind=kind, division=other._divisions[training])
                # Else an older checkpoint would still be the last one here, and go on under the same identity.
                for token in theirs[len(mine) :]:
                    append({"event": "saved", "training": training, "token": token})
            new, apart = other._unknown_to(self), {owner for owner, *_ in self._unknown_to(other).values()}
            left = {run: self._unmade_by(run) + other._unmade_by(run) for run, *_ in new.values() if run in apart}
            for block, (owner, charge, count) in new.items():
                self._reserve(append, charge, count, run=owner, block=block)
            for owner, counts in other._totals.items():
                self._raise(append, counts, run=owner)
            for owner, plan in other._plans.items():
                if owner in left:  # each of two fits may have been stopped for what it released
                    plan = Plan(plan.calls, self.counts(run=owner) + left[owner], plan.changed)
                if (joined := plan.joined(self._plans.get(owner))) != self._plans.get(owner):
                    append({"event": "plan", "run": owner, **joined.to_dict()})

    def _unknown_to(self, other: Ledger) -> dict[str, tuple[str, Charge, int]]:
        """Blocks of runs, each of them first, that another ledger lacks."""
        blocks = {key: one for key, one in self._blocks.items() if one[2] and one[0] not in self._trainings}
        return {key: one for key, one in blocks.items() if key not in other._blocks and not key.startswith("raised")}

    def charge(self, charge: Charge, *, afford: Callable[[], int] | None = None) -> None:
        """Counts one release. When this returns, the release is on disk and its noise may be drawn.

        Args:
            charge: The release.
            afford: Called before a block is reserved; returns how many releases of this kind it may hold, at least 1,
                or raises to refuse. It is called with the file locked and all of it read, so that no other process can
                spend what it grants; it may only call `counts` and `runs` of this ledger.

        Raises:
            LedgerError: The line could not be written: nothing may be released.
        """
        block = self._open_block()
        if block is None or block[1] != charge or self._used >= block[2]:
            self.settle()
            with self._locked() as append:
                count = self.block if afford is None else min(self.block, afford())
                self._open = self._reserve(append, charge, count)
        self._used += 1

    def settle(self) -> None:
        """Closes the open block for what it used, at a proper end; a crash leaves the whole block spent.

        Raises:
            LedgerError: The line could not be written: the whole block stays spent.
        """
        block, used = self._open_block(), self._used
        self._open, self._used = None, 0
        if block is None or used == block[2]:
            return
        with self._locked() as append:
            append({"event": "settle", "block": block[0], "used": used})

    def refresh(self) -> None:
        """Reads what other runs have appended."""
        with self._locked():
            pass

    def restore(self, counts: Mapping[Charge, int]) -> None:
        """Raises this run's counts to at least `counts` of a checkpoint: the larger of the two holds."""
        self.settle()
        with self._locked() as append:
            self._raise(append, counts, run=self.run)

    def _become_another(self) -> None:
        self._open, self._used, self._serial = None, 0, 0
        self._process = os.getpid()
        # Random: a resumed run in a container may well have the process id of the one that crashed.
        self._instance = secrets.token_hex(8)

    def _open_block(self) -> Block | None:
        # A fork or a copy would spend each release of the block a second time.
        if self._process != os.getpid():
            self._become_another()
        return self._open

    def _raise(self, append: Append, counts: Mapping[Charge, int], *, run: str) -> None:
        """Raises what a run or a training has spent to at least `counts`, by a block that no other ledger adds."""
        for charge, count in counts.items():
            if (more := count - self._totals.get(run, Counter())[charge]) > 0:
                self._reserve(append, charge, more, run=run, block=f"raised-{secrets.token_hex(8)}")

    def _reserve(self, append: Append, charge: Charge, count: int, *, run: str = "", block: str = "") -> Block:
        check_count("count", count, minimum=1)
        self._serial += 1
        key, owner = block or f"{self._instance}-{self._serial}", run or self.run
        append({"event": "reserve", "block": key, "run": owner, "count": count, **charge.to_dict()})
        return key, charge, count

    def _append_training(self, append: Append, **line: Any) -> None:
        append({"event": "training", "fingerprint": None, "division": {}, **line})

    def _take_training(self, training: str, kind: str, fingerprint: str | None, division: Mapping[str, Any]) -> None:
        # A run of this name would no longer count as a run.
        if training in self._totals and training not in self._trainings:
            raise ValueError(f"{training} is a run, and cannot be a training as well")
        self._trainings[str(training)], self._divisions[str(training)] = str(kind), dict(division)
        if fingerprint is not None:
            self._fingerprints[str(fingerprint)] = str(training)

    def _take_reserved(self, key: str, run: str, charge: Charge, count: int) -> None:
        if key in self._blocks:
            raise ValueError(f"block {key} is reserved twice")
        if run in self._trainings and (charge.training != run or charge.queries):
            raise ValueError(f"{run} is a training, and cannot be a run as well")
        self._blocks[key] = (run, charge, check_count("count", count, minimum=1))
        self._totals.setdefault(run, Counter())[charge] += count

    def _take_plan(self, run: str, plan: Plan) -> None:
        if run in self._trainings:
            raise ValueError(f"{run} is a training, and cannot be a run as well")
        self._plans[run] = plan

    def _take_settled(self, key: str, used: int) -> None:
        run, charge, count = self._blocks[key]
        unused = count - check_count("used", used)
        if unused < 0 or key in self._settled:
            raise ValueError(f"{used} of {count} releases used, or settled before")
        self._blocks[key] = (run, charge, used)
        self._settled.add(key)
        self._totals[run][charge] -= unused

    def _locked(self) -> contextlib.AbstractContextManager[Append]:
        """Locks the file, reads what others wrote, and yields a function that appends a line."""
        if self._journal is None:
            return contextlib.nullcontext(self._take)
        opening = {"event": "open", "version": _VERSION, "private_data": self.private_data}
        return self._journal.locked(take=self._take, opening=lambda: {**opening, "ledger": self.id, "key": self._key})

    def _take(self, entry: dict[str, Any]) -> None:
        self._changes += 1
        event = entry["event"]
        if event == "open":
            self._check_header(entry)
        elif event == "reserve":
            self._take_reserved(entry["block"], entry["run"], Charge.from_dict(entry), entry["count"])
        elif event == "saved":
            self._saved.setdefault(str(entry["training"]), []).append(str(entry["token"]))
        elif event == "plan":
            self._take_plan(str(entry["run"]), Plan.from_dict(entry))
        elif event == "training":
            self._take_training(entry["training"], entry["kind"], entry["fingerprint"], entry["division"])
        elif event == "settle":
            self._take_settled(entry["block"], entry["used"])
        else:
            raise ValueError(f"unknown event {event!r}")

    def _check_header(self, entry: Mapping[str, Any]) -> None:
        if entry["version"] != _VERSION:
            raise LedgerError(
                f"the privacy ledger {self.path} has version {entry['version']}, this code reads {_VERSION}"
            )
        self._key, self.id = str(entry["key"]), str(entry["ledger"])
        bytes.fromhex(self._key)
        if entry["private_data"] != self.private_data:
            raise LedgerError(
                f"the privacy ledger {self.path} is about {entry['private_data']!r}, not {self.private_data!r}; "
                "set `ledger` to the file that belongs to this data"
            )


def ledgers_of(training: Training | UnnamedTraining, folders: Iterable[Path]) -> dict[Path, str]:
    """Ledgers in `folders` that know a training, by identity or weights (`Ledger.identify`), with their data's name.

    Files that are not ledgers are skipped.
    """
    data_names = {}
    for path in sorted(path for folder in set(folders) for path in folder.glob("*.jsonl")):
        try:
            header, _, rest = path.read_bytes().partition(b"\n")
            opening = json.loads(header)
            readable = opening["event"] == "open" and opening["version"] == _VERSION
            identity = training.id if isinstance(training, Training) else _fingerprint(opening["key"], training.digest)
            if readable and f'"{identity}"'.encode() in rest:
                data_names[path.resolve()] = str(opening["private_data"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return data_names


def _require_division(divisions: Mapping[str, Any], training: str, now: Mapping[str, Any], path: Path | None) -> None:
    for other, before in divisions.items():
        for name in now.keys() & before.keys():
            if other != training and now[name] != before[name]:
                raise LedgerError(
                    f"{name} of the data is {now[name]!r}, and the privacy ledger {path} has {before[name]!r} for "
                    f"training {other}: which records are private, or whose they are, would differ, and no epsilon "
                    f"covers both. Set {name} to what it was; other records need another name"
                )


def _fingerprint(key: str, digest: bytes) -> str:
    return hmac.new(bytes.fromhex(key), digest, hashlib.sha256).hexdigest()


def ledger_file(private_data: str, *, beside: Path | None = None, recorded: Path | None = None) -> Path:
    """Path of the one ledger of a private data set, symbolic links resolved.

    In this order: the folder that `TRANSCRIPTION_LEDGERS` names; the file that the teacher's training recorded, if the
    folder it was trained in exists; next to the teacher's file; `ledgers/` in the working folder.

    Args:
        private_data: Public name of the data.
        beside: The teacher's file, if there is one.
        recorded: The path in the teacher's file, if it names one.
    """
    name = re.sub(r"[^\w.]+", "-", private_data).strip("-.") or "private-data"
    if folder := os.environ.get(LEDGERS):
        return (Path(folder) / f"{name}.jsonl").resolve()
    if recorded is not None and recorded.parent.parent.is_dir():
        return recorded.resolve()
    if beside is not None:
        return beside.resolve().with_name(f"{name}.ledger.jsonl")
    return (Path("ledgers") / f"{name}.jsonl").resolve()
