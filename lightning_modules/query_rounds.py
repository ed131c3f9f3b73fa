"""Queries in several rounds: where each round ends, and how many steps they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["QueryRounds"]


@dataclass(frozen=True, kw_only=True)
class QueryRounds:
    """Queries, divided into rounds whose sizes differ by one at most.

    Where there are fewer queries than rounds, some rounds are empty.

    Attributes:
        queries: Number of queries in all.
        rounds: Number of rounds.
    """

    queries: int
    rounds: int = 1

    @property
    def ends(self) -> list[int]:
        """How many queries have been made when each round ends."""
        return [self.queries * (number + 1) // self.rounds for number in range(self.rounds)]

    def current(self, asked: int) -> tuple[int, int]:
        """The round that the next query is in, after `asked` of them: its number, from 0, and where it ends.

        Raises:
            ValueError: No query is left.
        """
        for number, end in enumerate(self.ends):
            if end > asked:
                return number, end
        raise ValueError(f"asked must be less than the {self.queries} queries, got {asked}")

    def left_in_round(self, asked: int) -> int:
        """Queries that the current round has left; 0 after the last."""
        return self.current(asked)[1] - asked if asked < self.queries else 0

    def steps(self, asked: int, *, batch_size: int) -> int:
        """Steps of at most `batch_size` queries of one round each that are left."""
        return sum(math.ceil((end - begin) / batch_size) for begin, end in pairwise(self._ends_from(asked)))

    def pauses(self, asked: int) -> int:
        """How many times one round is followed by another, counted from the current round."""
        return max(0, len(self._ends_from(asked)) - 2)

    def _ends_from(self, asked: int) -> list[int]:
        return sorted({asked, *(end for end in self.ends if end > asked)})
