"""Counts of DP-SGD's steps by kind: entries of noise multiplier, sample rate and count, as checkpoints hold them."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["StepCounts", "added", "larger"]

StepCounts: TypeAlias = list[list[float]]


def added(steps: StepCounts, kind: list[float], count: int) -> StepCounts:
    """`steps` with so many more of a (noise multiplier, sample rate), those of one kind in one entry."""
    entries = [[*entry] for entry in steps]
    for entry in entries:
        if entry[:2] == kind:
            entry[2] += count
            return entries
    return [*entries, [*kind, count]] if count else entries


def larger(first: StepCounts, second: StepCounts) -> StepCounts:
    """Of each kind of step the larger count."""
    counts: dict[tuple[float, float], float] = {}
    for noise, rate, count in [*first, *second]:
        counts[noise, rate] = max(count, counts.get((noise, rate), 0))
    return [[noise, rate, count] for (noise, rate), count in counts.items()]
