"""What two ensembles say of the same images that differ in few of their teachers: what a record can change."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

Neighbours = tuple[torch.Tensor, torch.Tensor]

_ENTRIES = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, 1.7e308, -1.7e308, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan, 1e-3, -1.0]),
    st.floats(min_value=-300, max_value=308).map(lambda power: 10.0**power),
)


@st.composite
def neighbours(draw: st.DrawFn, *, changed: int = 1) -> Neighbours:
    """Two tensors (n, B, c) of which `changed` teachers differ, on every image and in whatever way."""
    teachers, rows, classes = draw(st.integers(changed, 5)), draw(st.integers(1, 3)), draw(st.integers(2, 4))

    def table() -> torch.Tensor:
        drawn = draw(st.lists(_ENTRIES, min_size=rows * classes, max_size=rows * classes))
        return torch.tensor(drawn, dtype=torch.float64).view(rows, classes)

    first = torch.stack([table() for _ in range(teachers)])
    second = first.clone()
    for number in draw(st.lists(st.integers(0, teachers - 1), min_size=changed, max_size=changed, unique=True)):
        second[number] = table()
    return first, second


def worst_neighbours(*, changed: int, teachers: int = 3) -> Neighbours:
    """The first `changed` teachers say the opposite of what they said, on every image."""
    first = torch.zeros(teachers, 2, 3, dtype=torch.float64)
    first[..., 0] = 1e6
    second = first.clone()
    second[:changed] *= -1
    return first, second
