"""What the lines of a ledger say, and what each line must satisfy."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from privacy.checks import check_count
from privacy.identity import Head
from privacy.journal import LedgerError
from privacy.plan import Charge, Plan, unmade

VERSION = 3


class Absorbed(NamedTuple):
    """Another ledger that is counted here.

    Attributes:
        key: Key of its hashes; see `LedgerState.key`.
        path: Where it was.
        lines: Hashes of its lines that are counted; of several copies of it, those of each.
    """

    key: str
    path: str
    lines: frozenset[str]


@dataclass
class LedgerState:
    """What a ledger holds.

    Attributes:
        path: Its file, for messages; None in memory.
        private_data: Name of the data, which that of the file must equal unless it is `renamed`.
        key: Key of the hashes by which teachers without an identity are recognised; see `privacy.ledger.identify`.
        id: Random, to tell a file from one that replaces it.
        renamed: Whether the data may have another name in the file, whose name is then taken.
        totals: Charges of each run and training.
        blocks: What each line reserved, less what was settled: the run, the charge, and how many of it.
        plans: Plans of runs.
        trainings: Kinds of trainings, by identity.
        divisions: Settings of trainings that decide which records are private.
        fingerprints: Identities of teachers, by keyed hash.
        settled: Blocks that were settled.
        saved: Tokens of the saved states of trainings.
        filters: Target ε and δ of the privacy filters that runs went by.
        absorbed: Other ledgers that are counted here, by identity.
        moved: The ledger in which this one is counted, by identity and file; None if it goes on here.
        lost: Whether a ledger that is counted here was itself counted in one that could not be found.
        changes: Number of lines so far.
        circular: Whether copies lead to each other, and this is the one at which all of them end.
    """

    path: Path | None
    private_data: str
    key: str
    id: str
    renamed: bool = False
    totals: dict[str, Counter[Charge]] = field(default_factory=dict)
    blocks: dict[str, tuple[str, Charge, int]] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    trainings: dict[str, str] = field(default_factory=dict)
    divisions: dict[str, dict[str, Any]] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    saved: dict[str, list[str]] = field(default_factory=dict)
    filters: dict[str, tuple[float, float]] = field(default_factory=dict)
    absorbed: dict[str, Absorbed] = field(default_factory=dict)
    moved: tuple[str, Path] | None = None
    lost: bool = False
    changes: int = 0
    circular: bool = False

    def counts(self, run: str | None = None) -> Counter[Charge]:
        """Charges of one run or training, or of all runs."""
        total: Counter[Charge] = Counter()
        for owner, counts in self.totals.items():
            if owner == run or (run is None and owner not in self.trainings):
                total.update(counts)
        return total

    def counts_all(self, head: Head) -> bool:
        """Whether another ledger is counted here as far as a line of it."""
        return head[0] in self.absorbed and head[2] in self.absorbed[head[0]].lines

    def leads_to(self) -> Path | None:
        """The ledger that counts this one, if it can be found."""
        if self.moved is None or self.circular:
            return None
        identity, path = self.moved
        header = header_of(path)
        return path if header is not None and header.get("ledger") == identity else None

    def unmade(self, run: str, *, made: Counter[Charge] | None = None) -> Counter[Charge]:
        """What a run planned and has not released; `made` are its releases, if others than its reserved ones."""
        plan, made = self.plans.get(run), +self.counts(run) if made is None else made
        return unmade(plan.charges, made) if plan is not None and made else Counter()

    def raised(self, counts: Mapping[Charge, int], *, run: str) -> Iterator[dict[str, Any]]:
        """Lines that raise what a run or a training has spent to at least `counts`; no other ledger adds them."""
        for charge, count in counts.items():
            if (more := count - self.totals.get(run, Counter())[charge]) > 0:
                yield reserve_line(f"raised-{secrets.token_hex(8)}", charge, more, run=run)

    def to_count(self, other: LedgerState, lines: Sequence[str], *, lost: bool) -> Iterator[dict[str, Any]]:
        """Lines with which this ledger counts what another one holds; each is taken over before the next is made.

        Args:
            other: The other one.
            lines: Hashes of its lines.
            lost: Whether something that was counted there could not be found.

        Raises:
            LedgerError: No ε covers both; see `Ledger.absorb`.
        """
        for training, kind in other.trainings.items():
            here, there = (one.saved.get(training, []) for one in (self, other))
            if here and there and here[-1] not in there and there[-1] not in here:
                raise LedgerError(
                    f"training {training} went on from one state both in {self.path} and in {other.path}: two "
                    "teachers, and no epsilon covers both. Take the copy away, and publish nothing of its teacher"
                )
            if training not in self.trainings:
                division = other.divisions[training]
                require_division(self.divisions, training, division, self.path)
                named = next((one for one, known in other.fingerprints.items() if known == training), None)
                yield training_line(training, kind, division=division, fingerprint=named)
            # Else an older checkpoint would still be the last one here, and go on under the same identity.
            for token in there[len(here) :]:
                yield {"event": "saved", "training": training, "token": token}
        for run, budget in other.filters.items():
            if run not in self.filters:
                yield {"event": "filters", "run": run, "target_epsilon": budget[0], "delta": budget[1]}
        new, apart = _unknown(other, self), {owner for owner, *_ in _unknown(self, other).values()}
        left = {run: self.unmade(run) + other.unmade(run) for run, *_ in new.values() if run in apart}
        for owner, plan in other.plans.items():  # first: after a crash, `left` is found anew, and never smaller
            if owner in left:  # each of two fits may have been stopped for what it released
                made = self.counts(owner)
                for run, charge, count in new.values():
                    made[charge] += count * (run == owner)
                plan = Plan(plan.calls, (made | other.counts(owner)) + left[owner], plan.changed)
            if (joined := plan.joined(self.plans.get(owner))) != self.plans.get(owner):
                yield {"event": "plan", "run": owner, **joined.to_dict()}
        for block, (owner, charge, count) in new.items():
            yield reserve_line(block, charge, count, run=owner)
        for owner, counts in other.totals.items():
            yield from self.raised(counts, run=owner)
        itself = [(other.id, Absorbed(other.key, str(other.path), frozenset(lines)))]
        for identity, one in [*other.absorbed.items(), *itself] if lines else ():
            known = self.absorbed[identity].lines if identity in self.absorbed else frozenset()
            if (new_lines := sorted(one.lines - known)) or (lost and not self.lost):
                said = {"ledger": identity, "key": one.key, "path": one.path, "lines": new_lines, "lost": lost}
                yield {"event": "absorbed", **said}

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
                if used > count or block in self.settled:
                    raise ValueError(f"{used} of {count} releases used, or settled before")
                if not dry:
                    self.blocks[block] = (run, charge, used)
                    self.settled.add(block)
                    self.totals[run][charge] -= count - used
            case "plan":
                run, plan = self._run(line), Plan.from_dict(line)
                if not dry:
                    self.plans[run] = plan
            case "training":
                training, kind, division = str(line["training"]), str(line["kind"]), dict(line["division"])
                fingerprint = line["fingerprint"]
                # A run of this name would no longer count as a run.
                if training in self.totals and training not in self.trainings:
                    raise ValueError(f"{training} is a run, and cannot be a training as well")
                if not dry:
                    self.trainings[training], self.divisions[training] = kind, division
                    if fingerprint is not None:
                        self.fingerprints[str(fingerprint)] = training
            case "saved":
                training, token = str(line["training"]), str(line["token"])
                if not dry:
                    self.saved.setdefault(training, []).append(token)
            case "filters":
                run, budget = str(line["run"]), (float(line["target_epsilon"]), float(line["delta"]))
                if not dry:
                    self.filters[run] = budget
            case "absorbed":
                identity, key, path, lost = str(line["ledger"]), str(line["key"]), str(line["path"]), bool(line["lost"])
                bytes.fromhex(key)
                lines = frozenset(str(one) for one in line["lines"])
                if not dry:
                    before = self.absorbed[identity].lines if identity in self.absorbed else frozenset()
                    self.absorbed[identity] = Absorbed(key, path, before | lines)
                    self.lost |= lost
            case "moved":
                moved = (str(line["ledger"]), Path(line["path"]))
                if not dry:
                    self.moved = moved
            case event:
                raise ValueError(f"unknown event {event!r}")
        self.changes += not dry

    def _run(self, line: Mapping[str, Any]) -> str:
        """The run of a line, or the training whose own releases it reserves."""
        run = str(line["run"])
        if run in self.trainings and (line.get("training") != run or line.get("queries")):
            raise ValueError(f"{run} is a training, and cannot be a run as well")
        return run


def header_of(path: Path) -> dict[str, Any] | None:
    """First line of a ledger; None if the file cannot be read, or is none of this version."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
        return header if header["event"] == "open" and header["version"] == VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def reserve_line(block: str, charge: Charge, count: int, *, run: str) -> dict[str, Any]:
    """The line that reserves a block."""
    return {"event": "reserve", "block": block, "run": run, "count": count, **charge.to_dict()}


def training_line(
    training: str, kind: str, *, division: Mapping[str, Any] | None = None, fingerprint: str | None = None
) -> dict[str, Any]:
    """The line that names a training."""
    known = {"kind": kind, "fingerprint": fingerprint, "division": division or {}}
    return {"event": "training", "training": training, **known}


def require_division(divisions: Mapping[str, Any], training: str, now: Mapping[str, Any], path: Path | None) -> None:
    """Refuses a training in which other records were private than in those that are known.

    Raises:
        LedgerError: They were, and no ε covers both.
    """
    for other, before in divisions.items():
        for name in now.keys() & before.keys():
            if other != training and now[name] != before[name]:
                raise LedgerError(
                    f"{name} of the data is {now[name]!r}, and the privacy ledger {path} has {before[name]!r} for "
                    f"training {other}: which records are private, or whose they are, would differ, and no epsilon "
                    f"covers both. Set {name} to what it was; other records need a folder and a name of their own"
                )


def _unknown(known: LedgerState, to: LedgerState) -> dict[str, tuple[str, Charge, int]]:
    """Blocks of runs, each of them first, that another ledger lacks."""
    blocks = {key: one for key, one in known.blocks.items() if one[2] and one[0] not in known.trainings}
    return {key: one for key, one in blocks.items() if key not in to.blocks and not key.startswith("raised")}
