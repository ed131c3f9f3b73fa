"""A ledger that process 0 of a run writes and the other processes follow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

from privacy.identity import Head
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.plan import Charge
from privacy.processes import ALONE, Processes, on_rank_zero

_T = TypeVar("_T")


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

    def on_rank_zero(self, act: Callable[[], _T]) -> _T:
        """Runs what uses the ledger in process 0; its result or error, and the ledger's new state, reach all.

        Raises:
            Exception: What `act` raised.
        """
        return on_rank_zero(self.processes, act, tell=self._state_to_follow, follow=self._follow)

    def _state_to_follow(self) -> dict[str, Any] | None:
        if (ledger := self._ledger) is None:
            return None
        since, self._told = self._told, ledger.version
        known = {"private_data": ledger.private_data, "path": ledger.path, "state": ledger.state_to_follow(since=since)}
        return {**known, "own": {name: getattr(self, name) for name in self._followed}}

    def _follow(self, told: Mapping[str, Any] | None) -> None:
        if told is None:
            return
        self.__dict__.update(told["own"])
        if isinstance(self._ledger, LedgerReplica):
            self._ledger.follow(told["state"])
        else:
            self._ledger = LedgerReplica(**{name: told[name] for name in ("private_data", "path", "state")})


class LedgerReplica(Ledger):
    """A copy of process 0's ledger in every other process of a run.

    ε is computed from it as from any ledger. It refuses charges, so that no process can release anything without
    process 0. The file at `path`, which process 0 writes, is not opened.
    """

    _followed_head: Head | None = None

    def __init__(self, *, private_data: str, path: Path | None, state: Mapping[str, Any]) -> None:
        super().__init__(path=None, private_data=private_data, run=str(state["run"]))
        self.path = path
        self.follow(state)

    def follow(self, state: Mapping[str, Any]) -> None:
        """Takes over the `Ledger.state_to_follow` of process 0."""
        self.__dict__.update(state, _process=os.getpid())

    @property
    def head(self) -> Head | None:
        return self._followed_head

    def charge(self, charge: Charge, *, afford: Callable[[], int] | None = None) -> NoReturn:
        """Refuses.

        Raises:
            LedgerError: Always.
        """
        raise self._not_here()

    def settle(self) -> None:
        """Does nothing: process 0 does it."""

    def refresh(self) -> None:
        """Does nothing: process 0 does it."""

    def _locked(self) -> NoReturn:
        raise self._not_here()

    def _not_here(self) -> LedgerError:
        return LedgerError(
            "this process follows the privacy ledger of its run, which process 0 alone writes: it can charge nothing, "
            "and release nothing by itself"
        )
