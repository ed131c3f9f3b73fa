"""Rounds of queries: every query is in one round, and steps are counted as they are made."""

from __future__ import annotations

import pytest

from lightning_modules.query_rounds import QueryRounds


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(("queries", "rounds"), [(18, 1), (18, 2), (10, 3), (7, 7), (2, 5), (1, 1)])
def test_steps_and_pauses_that_are_left_are_those_that_are_made(queries: int, rounds: int, batch_size: int) -> None:
    divided = QueryRounds(queries=queries, rounds=rounds)
    made: list[tuple[int, int]] = []
    asked = 0
    while size := min(batch_size, divided.left_in_round(asked)):
        made.append((asked, divided.current(asked)[0]))
        asked += size
    assert asked == queries == divided.ends[-1] and len(divided.ends) == rounds
    for done, (begun, number) in enumerate(made):
        assert divided.steps(begun, batch_size=batch_size) == len(made) - done
        assert divided.pauses(begun) == len({later for _, later in made if later > number})


def test_rounds_have_nearly_equal_sizes() -> None:
    assert QueryRounds(queries=10, rounds=3).ends == [3, 6, 10]
    assert QueryRounds(queries=2, rounds=5).ends == [0, 0, 1, 1, 2]


def test_after_the_last_query_there_is_no_round() -> None:
    divided = QueryRounds(queries=4, rounds=2)
    assert divided.left_in_round(4) == divided.steps(4, batch_size=2) == divided.pauses(4) == 0
    assert divided.current(3) == (1, 4)
    with pytest.raises(ValueError, match="asked must be less than the 4 queries, got 4"):
        divided.current(4)
