"""The append-only file in which every release of private information is written down before it is made.

A checkpoint forgets what was spent after it was saved; a run that crashes and starts again from it has spent more than
it remembers. The ledger therefore belongs to the **private data** (it lies beside the teacher, not beside a run), is
written and synced to disk before the noise of a release is drawn, and is read again by whatever uses that teacher next.

Releases are reserved in blocks: a line that says "up to n releases of this kind" is synced, and the n releases that
follow need no more input or output. A run that ends properly settles its last block for what it used. One that does not
has spent the whole block, as far as anybody can tell.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.checks import check_count
from privacy.claims import Claim, claim_from_dict
from privacy.releases import Release, release_from_dict

__all__ = ["Charge", "Ledger", "LedgerError"]

_VERSION = 1


class LedgerError(RuntimeError):
    """A ledger that cannot be read or written; without it no ε can be stated."""


@dataclass(frozen=True)
class Charge:
    """One release as the ledger counts it.

    Attributes:
        release: What it costs under record-level neighbours.
        claim: What a paper's theorem counts for it, or None where no theorem is claimed.
        queries: How many inputs the teacher was asked about for it.
    """

    release: Release
    claim: Claim | None = None
    queries: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and checkpoints; see `charge_from_dict`."""
        return {
            "release": self.release.to_dict(),
            "claim": None if self.claim is None else self.claim.to_dict(),
            "queries": self.queries,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charge:
        """Inverse of `to_dict`."""
        claim = values.get("claim")
        return cls(
            release=release_from_dict(values["release"]),
            claim=None if claim is None else claim_from_dict(claim),
            queries=check_count("queries", values["queries"]),
        )


class Ledger:
    """Counts of releases per run, on disk and in memory. For one thread.

    Args:
        path: The file, made where it is missing; None keeps the ledger in memory, where it survives no crash and is
            seen by no other process.
        private_data: Public name of the data that the releases are about, such as `MNIST/train`.
        run: Identity of the run that charges, kept by its checkpoints.
        block: How many releases one synced line reserves.

    Raises:
        LedgerError: The file is damaged, of another version, about other data, or in a folder that cannot be written.
        ValueError: `block` is below 1.
    """

    def __init__(self, *, path: str | Path | None, private_data: str, run: str, block: int = 100) -> None:
        # Absolute, so that a change of the working folder does not change the ledger.
        self.path = None if path is None else Path(path).absolute()
        self.private_data = private_data
        self.run = run
        self.block = check_count("block", block, minimum=1)
        self._totals: dict[str, Counter[Charge]] = {}
        self._blocks: dict[str, tuple[str, Charge, int]] = {}
        self._offset = 0
        self._open: tuple[str, Charge, int] | None
        self._used: int
        self._process: int | None
        self._become_another()
        if self.path is not None:
            self._make_folder(self.path.parent)
            with self._locked():
                self._sync_folder(self.path.parent)

    def __getstate__(self) -> dict[str, Any]:
        """A copy must not use up the block that its original has open."""
        return {**self.__dict__, "_process": None}

    @property
    def durable(self) -> bool:
        """Whether a crash leaves the ledger complete."""
        return self.path is not None

    def counts(self, *, run: str | None = None) -> Counter[Charge]:
        """Releases charged so far: by one run, or by all that the ledger knows of where `run` is None.

        The open block of this object counts for what it used; every other block for all that it reserved.
        """
        total: Counter[Charge] = Counter()
        for owner, counts in self._totals.items():
            if run is None or owner == run:
                total.update(counts)
        block = self._open_block()
        if block is not None and run in (None, self.run):
            _, charge, count = block
            total[charge] -= count - self._used
        return +total

    def runs(self) -> list[str]:
        """Identities of the runs that have charged, in the order in which they first did."""
        return [owner for owner in self._totals if self.counts(run=owner)]

    def charge(self, charge: Charge, *, afford: Callable[[], int] | None = None) -> None:
        """Counts one release. When this returns, the release is on disk and its noise may be drawn.

        Args:
            charge: The release.
            afford: Asked before a new block is reserved how many releases of this kind it may hold, at least 1; raises
                to refuse. It is called with the file locked and all of it read, so that no other process can spend what
                it grants; it must not use this ledger other than by `counts` and `runs`.

        Raises:
            LedgerError: The line could not be written: nothing may be released.
        """
        if not self.has_reserved(charge):
            self.settle()
            with self._locked() as append:
                count = self.block if afford is None else min(self.block, afford())
                self._open = self._reserve(append, charge, count)
        self._used += 1

    def has_reserved(self, charge: Charge) -> bool:
        """Whether the open block covers one more release of this kind."""
        block = self._open_block()
        return block is not None and block[1] == charge and self._used < block[2]

    def settle(self) -> None:
        """Closes the open block for what it used. Called at a proper end; a crash leaves the whole block spent.

        Raises:
            LedgerError: The line could not be written: the whole block stays spent.
        """
        block, used = self._open_block(), self._used
        self._open, self._used = None, 0
        if block is None or used == block[2]:
            return
        with self._locked() as append:
            append({"event": "settle", "block": block[0], "used": used})
            self._take_settled(block[0], used)

    def refresh(self) -> None:
        """Reads what other runs have appended since."""
        with self._locked():
            pass

    def restore(self, counts: Mapping[Charge, int]) -> None:
        """Raises this run's counts to at least `counts`, which a checkpoint remembers: the larger of the two holds."""
        self.settle()
        with self._locked() as append:
            known = self.counts(run=self.run)
            for charge, count in counts.items():
                if count > known[charge]:
                    self._reserve(append, charge, count - known[charge])

    def _become_another(self) -> None:
        self._open, self._used, self._serial = None, 0, 0
        self._process = os.getpid()
        # Random, since a resumed run in a container may well have the process number of the one that crashed.
        self._instance = secrets.token_hex(8)

    def _open_block(self) -> tuple[str, Charge, int] | None:
        # A fork or a copy would spend each release of the block a second time.
        if self._process != os.getpid():
            self._become_another()
        return self._open

    def _reserve(self, append: Callable[[dict[str, Any]], None], charge: Charge, count: int) -> tuple[str, Charge, int]:
        check_count("count", count, minimum=1)
        self._serial += 1
        key = f"{self._instance}-{self._serial}"
        append({"event": "reserve", "block": key, "run": self.run, "count": count, **charge.to_dict()})
        self._take_reserved(key, self.run, charge, count)
        return key, charge, count

    def _take_reserved(self, key: str, run: str, charge: Charge, count: int) -> None:
        if key in self._blocks:
            raise ValueError(f"block {key} is reserved twice")
        self._blocks[key] = (run, charge, check_count("count", count, minimum=1))
        self._totals.setdefault(run, Counter())[charge] += count

    def _take_settled(self, key: str, used: int) -> None:
        run, charge, count = self._blocks[key]
        unused = count - check_count("used", used)
        if unused < 0:
            raise ValueError(f"{used} of {count} releases used")
        del self._blocks[key]
        self._totals[run][charge] -= unused

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Gives the function that appends a line, with the file locked and all that others wrote read in."""
        if self.path is None:
            yield lambda line: None
            return
        try:
            # Once read, a file that is gone must not be begun anew.
            create = os.O_CREAT if self._offset == 0 else 0
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | create, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._read_new(descriptor)
                yield functools.partial(self._append, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unusable(error) from error

    def _append(self, descriptor: int, line: dict[str, Any]) -> None:
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        if os.write(descriptor, data) != len(data):
            raise OSError("the line was cut short; is the disk full?")
        os.fsync(descriptor)
        self._offset += len(data)

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _unusable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"the privacy ledger {self.path} cannot be read or written ({error}): nothing may be released. Set "
            "`ledger` to a file that can be written"
        )

    def _read_new(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size < self._offset:
            raise LedgerError(f"the privacy ledger {self.path} has become shorter; it must only ever grow")
        data = os.pread(descriptor, size - self._offset, self._offset)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            if _is_json(data[whole:]):
                # Only its end is missing, perhaps by the hand of an editor: it counts.
                os.write(descriptor, b"\n")
                data += b"\n"
                whole = len(data)
            else:
                # A crash cut this line short before it was synced, so no noise has been drawn for it.
                os.ftruncate(descriptor, self._offset + whole)
            os.fsync(descriptor)
        for line in data[:whole].splitlines(keepends=True):
            self._apply(line, first=self._offset == 0)
            self._offset += len(line)
        if self._offset == 0:
            self._append(descriptor, {"event": "open", "version": _VERSION, "private_data": self.private_data})

    def _apply(self, line: bytes, *, first: bool) -> None:
        try:
            entry = json.loads(line)
            event = entry["event"]
            if (event == "open") != first:
                raise ValueError("the first line, and no other, says what the ledger is about")
            if event == "reserve":
                self._take_reserved(entry["block"], entry["run"], Charge.from_dict(entry), entry["count"])
            elif event == "settle":
                self._take_settled(entry["block"], entry["used"])
            elif event == "open":
                self._check_header(entry)
            else:
                raise ValueError(f"unknown event {event!r}")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise LedgerError(
                f"the privacy ledger {self.path} is damaged at the line {line[:200]!r} ({error}); what was spent "
                "cannot be known. Restore the file, or do not publish anything more from this data."
            ) from error

    def _check_header(self, entry: Mapping[str, Any]) -> None:
        if entry["version"] != _VERSION:
            raise LedgerError(
                f"the privacy ledger {self.path} has version {entry['version']}, this code reads {_VERSION}"
            )
        if entry["private_data"] != self.private_data:
            raise LedgerError(
                f"the privacy ledger {self.path} is about {entry['private_data']!r}, not {self.private_data!r}; "
                "set `ledger` to the file that belongs to this data"
            )


def _is_json(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
