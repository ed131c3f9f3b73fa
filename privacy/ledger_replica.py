"""A read-only replica of the ledger that process 0 of a run writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from privacy.identity import Head
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.plan import Charge


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
