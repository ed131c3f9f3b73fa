"""Joint actions of the processes of a run: they charge once, draw one noise, and stop at the same step.

The caller passes an object that knows how the processes communicate (`Processes`). Process 0 alone writes the ledger of
the private data, and the others follow it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, cast

from privacy.identity import Head
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.plan import Charge

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class ProcessesError(ValueError):
    """The processes cannot form a run."""


class Processes(Protocol):
    """The processes of a run, seen from one of them. Each method is a collective that every process must call."""

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def broadcast(self, value: Any) -> Any:
        """Returns the value of process 0, in every process."""

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes in rank order, in every process."""


class Alone:
    """The only process of a run."""

    rank = 0
    size = 1

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE = Alone()
"""The processes of a run that has one."""


@contextlib.contextmanager
def on_rank_zero(
    processes: Processes, *, tell: Callable[[], Any] | None = None, follow: Callable[[Any], None] | None = None
) -> Iterator[bool]:
    """A block whose acts are those of process 0, where it yields True; an error there reaches all.

    Args:
        processes: The processes of the run; each must enter the block.
        tell: Called in process 0 afterwards, also after an error; returns what the others need to know.
        follow: Called in every other process with what `tell` returned.

    Raises:
        Exception: What was raised in process 0, in every process.
    """
    if processes.size == 1:
        yield True
        return
    error: Exception | None = None
    try:
        yield processes.rank == 0
    except Exception as raised:
        error = _portable(raised)
    error, state = processes.broadcast((error, None if processes.rank or tell is None else tell()))
    if processes.rank and follow is not None:
        follow(state)
    _raise(error)


def by_all(processes: Processes, act: Callable[[], T]) -> T:
    """Runs an action in every process; if it fails in one, every process raises the first error.

    If only one process raised, the others would wait for it forever.

    Raises:
        Exception: What `act` raised in the process of lowest rank, in every process.
    """
    if processes.size == 1:
        return act()
    value, own = None, None
    try:
        value = act()
    except Exception as error:
        own = _portable(error)
    _raise(next((error for error in processes.gather(own) if error is not None), None))
    return cast(T, value)


def require_same(processes: Processes, value: Any, what: str) -> None:
    """Raises a `ProcessesError` in every process unless all hold the same (hashable) value."""
    if len(set(processes.gather(value))) > 1:
        raise everywhere(ProcessesError(f"the processes have different {what}: give all of them the same files"))


def share_size(batch_size: int, processes: int) -> int:
    """Number of samples of a global batch that each process makes.

    Raises:
        ProcessesError: Shares would be uneven, so that the mean of their means would not be the batch's mean.
    """
    if batch_size % processes:
        raise ProcessesError(
            "data.batch_size is that of all processes together, and each makes an equal share of it: it must be a "
            f"multiple of their number {processes}, got {batch_size}"
        )
    return batch_size // processes


def everywhere(error: E) -> E:
    """Marks an error that every process of the run raises."""
    error.raised_by_every_process = True  # type: ignore[attr-defined]
    return error


def failed_everywhere(error: BaseException) -> bool:
    """Whether every process of the run raises this error, so that one of them may report it."""
    return bool(getattr(error, "raised_by_every_process", False))


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise everywhere(error)


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else one with the same text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class SharedLedger:
    """Base of what holds the ledger of private data, in one process or in several.

    Attributes:
        processes: The processes of the run, of which only the first opens and writes the ledger.
        ledger_was_replaced: Whether the run, or its teacher, used another ledger before, which is not available.
    """

    #: State that the other processes take over from process 0.
    _followed: ClassVar[tuple[str, ...]] = ("ledger_was_replaced",)

    def __init__(self) -> None:
        self.processes: Processes = ALONE
        self.ledger_was_replaced = False
        self._ledger: Ledger | None = None
        #: Version of the ledger that the other processes have.
        self._told: tuple[str, int] | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger.

        Raises:
            RuntimeError: It has not been opened.
        """
        if self._ledger is None:
            raise RuntimeError("the ledger must be opened before anything is released")
        return self._ledger

    @property
    def is_open(self) -> bool:
        """Whether the ledger is open."""
        return self._ledger is not None

    def on_rank_zero(self) -> contextlib.AbstractContextManager[bool]:
        """A block for what process 0 does with the ledger, see `on_rank_zero`; all know its new state afterwards."""
        return on_rank_zero(self.processes, tell=self._state_to_follow, follow=self._follow)

    def _state_to_follow(self) -> dict[str, Any] | None:
        """State of the others' `LedgerReplica`, by attribute, and of this object."""
        if (ledger := self._ledger) is None:
            return None
        ledger._open_block()
        known = {name: getattr(ledger, name) for name in ("run", "path", "notes", "_open", "_used")}
        if self._told != ledger.version:
            known["_state"] = replace(ledger._state, blocks={})  # of which they write none
            self._told = ledger.version
        own = {name: getattr(self, name) for name in self._followed}
        return {"ledger": {**known, "_followed_head": ledger.head}, "own": own}

    def _follow(self, told: Mapping[str, Any] | None) -> None:
        if told is None:
            return
        self.__dict__.update(told["own"])
        if not isinstance(self._ledger, LedgerReplica):
            self._ledger = LedgerReplica(path=None, private_data="", run="")
        self._ledger.__dict__.update(told["ledger"], _process=os.getpid())


class LedgerReplica(Ledger):
    """A copy of process 0's ledger in every other process of a run.

    ε is computed from it as from any ledger. It refuses charges, so that no process can release anything without
    process 0. The file at `path`, which process 0 writes, is not opened.
    """

    _followed_head: Head | None = None

    @property
    def head(self) -> Head | None:
        return self._followed_head

    def charge(self, charge: Charge, times: int = 1, *, afford: Callable[[Charge], int] | None = None) -> None:
        """Refuses.

        Raises:
            LedgerError: Always.
        """
        self._locked()

    def sync(self) -> None:
        """Does nothing: process 0 does it."""

    def _locked(self) -> NoReturn:
        raise LedgerError(
            "this process follows the privacy ledger of its run, which process 0 alone writes: it can charge nothing, "
            "and release nothing by itself"
        )
