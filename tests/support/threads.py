"""Threads that play the processes of a run: what they tell each other is pickled, as between processes."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

from privacy.processes import Processes

SECONDS = 30


class _Thread:
    """See `privacy.processes.Processes`."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, table: list[bytes]) -> None:
        self.rank = rank
        self.size = size
        self._barrier = barrier
        self._table = table

    def gather(self, value: Any) -> list[Any]:
        self._table[self.rank] = pickle.dumps(value)
        self._barrier.wait(SECONDS)
        found = [pickle.loads(given) for given in self._table]
        self._barrier.wait(SECONDS)
        return found

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]


def in_threads(act: Callable[[Processes], Any], *, count: int = 2) -> list[Any]:
    """What `act` gave, or raised, in each of so many threads that are told that they are processes."""
    barrier, table = threading.Barrier(count), [b""] * count
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            results[rank] = act(_Thread(rank, count, barrier, table))
        except Exception as error:  # handed to the test
            results[rank] = error
            if not getattr(error, "raised_by_every_process", False):
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return results
