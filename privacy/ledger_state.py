"""What the lines of a ledger say, and what each line must satisfy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
        key: Key of the hashes by which teachers without an identity are recognised; see `Ledger.identify`.
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

    def unmade(self, run: str, *, made: Counter[Charge] | None = None) -> Counter[Charge]:
        """What a run planned and has not released; `made` are its releases, if others than its reserved ones."""
        plan, made = self.plans.get(run), +self.counts(run) if made is None else made
        return unmade(plan.charges, made) if plan is not None and made else Counter()

    def take(self, line: Mapping[str, Any], *, dry: bool = False) -> None:
        """Checks a line and takes it over; `dry` only checks.

        Raises:
            ValueError: Nothing could be said of a ledger with this line.
            LedgerError: It begins a ledger of another version, or about other data.
        """
        handlers = {
            "open": self._opened,
            "reserve": self._reserved,
            "settle": self._settled,
            "plan": self._planned,
            "training": self._trained,
            "saved": self._was_saved,
            "filters": self._went_by_filters,
            "absorbed": self._was_absorbed,
            "moved": self._was_moved,
        }
        if line["event"] not in handlers:
            raise ValueError(f"unknown event {line['event']!r}")
        handlers[line["event"]](line, dry)
        self.changes += not dry

    def _opened(self, line: Mapping[str, Any], dry: bool) -> None:
        key, identity, name = str(line["key"]), str(line["ledger"]), str(line["private_data"])
        bytes.fromhex(key)
        if line["version"] != VERSION:
            raise LedgerError(
                f"the privacy ledger {self.path} has version {line['version']}, this code reads {VERSION}"
            )
        if name != self.private_data and not self.renamed:
            raise LedgerError(
                f"the privacy ledger {self.path} is about {name!r}, not {self.private_data!r}; set `ledger` to the "
                "file that belongs to this data"
            )
        if not dry:
            self.key, self.id, self.private_data = key, identity, name

    def _reserved(self, line: Mapping[str, Any], dry: bool) -> None:
        block, run, charge = str(line["block"]), str(line["run"]), Charge.from_dict(line)
        count = check_count("count", line["count"], minimum=1)
        if block in self.blocks:
            raise ValueError(f"block {block} is reserved twice")
        if run in self.trainings and (charge.training != run or charge.queries):
            raise ValueError(f"{run} is a training, and cannot be a run as well")
        if not dry:
            self.blocks[block] = (run, charge, count)
            self.totals.setdefault(run, Counter())[charge] += count

    def _settled(self, line: Mapping[str, Any], dry: bool) -> None:
        block = str(line["block"])
        run, charge, count = self.blocks[block]
        unused = count - check_count("used", line["used"])
        if unused < 0 or block in self.settled:
            raise ValueError(f"{line['used']} of {count} releases used, or settled before")
        if not dry:
            self.blocks[block] = (run, charge, count - unused)
            self.settled.add(block)
            self.totals[run][charge] -= unused

    def _planned(self, line: Mapping[str, Any], dry: bool) -> None:
        run, plan = str(line["run"]), Plan.from_dict(line)
        if run in self.trainings:
            raise ValueError(f"{run} is a training, and cannot be a run as well")
        if not dry:
            self.plans[run] = plan

    def _trained(self, line: Mapping[str, Any], dry: bool) -> None:
        training, kind, division = str(line["training"]), str(line["kind"]), dict(line["division"])
        fingerprint = line["fingerprint"]
        # A run of this name would no longer count as a run.
        if training in self.totals and training not in self.trainings:
            raise ValueError(f"{training} is a run, and cannot be a training as well")
        if not dry:
            self.trainings[training], self.divisions[training] = kind, division
            if fingerprint is not None:
                self.fingerprints[str(fingerprint)] = training

    def _was_saved(self, line: Mapping[str, Any], dry: bool) -> None:
        training, token = str(line["training"]), str(line["token"])
        if not dry:
            self.saved.setdefault(training, []).append(token)

    def _went_by_filters(self, line: Mapping[str, Any], dry: bool) -> None:
        run, budget = str(line["run"]), (float(line["target_epsilon"]), float(line["delta"]))
        if not dry:
            self.filters[run] = budget

    def _was_absorbed(self, line: Mapping[str, Any], dry: bool) -> None:
        identity, key, path, lost = str(line["ledger"]), str(line["key"]), str(line["path"]), bool(line["lost"])
        bytes.fromhex(key)
        lines = frozenset(str(one) for one in line["lines"])
        if not dry:
            before = self.absorbed[identity].lines if identity in self.absorbed else frozenset()
            self.absorbed[identity] = Absorbed(key, path, before | lines)
            self.lost |= lost

    def _was_moved(self, line: Mapping[str, Any], dry: bool) -> None:
        moved = (str(line["ledger"]), Path(line["path"]))
        if not dry:
            self.moved = moved
