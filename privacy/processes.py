"""Joint actions of the processes of a run: they charge once, draw one noise, and stop at the same step.

The caller passes an object that knows how the processes communicate (`Processes`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

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


def on_rank_zero(
    processes: Processes,
    act: Callable[[], T],
    *,
    tell: Callable[[], Any] | None = None,
    follow: Callable[[Any], None] | None = None,
) -> T:
    """Runs an action in process 0 only, and returns its result, or raises its error, in every process.

    Args:
        processes: The processes of the run; each must call this.
        act: The action. Its result must be picklable.
        tell: Called in process 0 afterwards, also after an error; returns what the others need to know.
        follow: Called in every other process with what `tell` returned.

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
        Exception: What `act` raised in the process of lowest rank, in every process.
    """
    if processes.size == 1:
        return act()
    value, own = _tried(act)
    errors = [error for error in processes.gather(own) if error is not None]
    return cast(T, _settled(value, errors[0] if errors else None))


def require_same(processes: Processes, value: Any, what: str) -> None:
    """Raises a `ProcessesError` in every process if they have different values, which are hashable, of what is one."""
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
    """Mark an error that every process of the run raises."""
    error.raised_by_every_process = True  # type: ignore[attr-defined]
    return error


def failed_everywhere(error: BaseException) -> bool:
    """Whether every process of the run raises this error, so that one of them may report it."""
    return bool(getattr(error, "raised_by_every_process", False))


def _tried(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Result of an action in this process, or its error."""
    try:
        return act(), None
    except Exception as error:
        return None, _portable(error)


def _settled(value: Any, error: Exception | None) -> Any:
    if error is not None:
        raise everywhere(error)
    return value


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else one with the same text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
