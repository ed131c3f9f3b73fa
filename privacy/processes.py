"""What several processes of one run must do jointly: charge once, draw one noise, and stop at the same step.

Nothing here knows how processes communicate: the caller passes an object that does (`Processes`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class ProcessesError(ValueError):
    """Processes that cannot form a run."""


class Processes(Protocol):
    """The processes of a run, as one of them sees them. Each method is a collective: every process must call it."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def broadcast(self, value: Any) -> Any:
        """What process 0 gave, in every process."""

    def gather(self, value: Any) -> list[Any]:
        """What each gave, in the order of their numbers, in every process."""


class Alone:
    """One process."""

    rank = 0
    size = 1

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE = Alone()
"""The processes of a run that has one."""


def on_rank_zero(
    processes: Processes,
    act: Callable[[], T],
    *,
    tell: Callable[[], Any] | None = None,
    follow: Callable[[Any], None] | None = None,
) -> T:
    """Runs an action in process 0 only; its result, or its error, reaches every process.

    Args:
        processes: All of a run; each must call this.
        act: What is done. Its result must be one that can be pickled.
        tell: Called in process 0 afterwards, also after an error: gives what the others need to know.
        follow: Given that in every other process.

    Raises:
        Exception: What `act` raised, in every process.
    """
    if processes.size == 1:
        return act()
    value = error = state = None
    if processes.rank == 0:
        value, error = _tried(act)
        state = None if tell is None else tell()
    value, error, state = processes.broadcast((value, error, state))
    if processes.rank and follow is not None:
        follow(state)
    return cast(T, _settled(value, error))


def by_all(processes: Processes, act: Callable[[], T]) -> T:
    """Runs an action in every process; if it fails in one, every process raises the first error.

    If only one process raised, the others would wait for it forever.

    Raises:
        Exception: What `act` raised in the process of the lowest number, in every process.
    """
    if processes.size == 1:
        return act()
    value, own = _tried(act)
    errors = [error for error in processes.gather(own) if error is not None]
    return cast(T, _settled(value, errors[0] if errors else None))


def share_size(batch_size: int, processes: int) -> int:
    """How many samples of a global batch each process makes.

    Raises:
        ProcessesError: They cannot be shared out evenly: a mean over shares would not be the mean over the batch.
    """
    if batch_size % processes:
        raise ProcessesError(
            "data.batch_size is that of all processes together, and each makes an equal share of it: it must be a "
            f"multiple of their number {processes}, got {batch_size}"
        )
    return batch_size // processes


def everywhere(error: E) -> E:
    """Marks an error that every process of the run raises: something they all know is wrong."""
    error.raised_by_every_process = True  # type: ignore[attr-defined]
    return error


def failed_everywhere(error: BaseException) -> bool:
    """Whether every process of the run raises this error, so that one of them may speak for all."""
    return bool(getattr(error, "raised_by_every_process", False))


def _tried(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What one process got, or the error that it met."""
    try:
        return act(), None
    except Exception as error:
        return None, _portable(error)


def _settled(value: Any, error: Exception | None) -> Any:
    if error is not None:
        raise everywhere(error)
    return value


def _portable(error: Exception) -> Exception:
    """The error itself where it can be sent, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
