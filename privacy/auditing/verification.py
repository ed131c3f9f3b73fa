"""Exact verification of discrete mechanisms by enumeration of their outputs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_nonnegative


def worst_case_epsilon(probabilities: ArrayLike) -> float:
    """The smallest pure ε of a discrete mechanism, over all pairs of inputs in both directions.

    Args:
        probabilities: rows are inputs, columns are outputs, shape (inputs, outputs); rows sum to one.

    Returns:
        The largest absolute log-ratio; `inf` where one input can give what another cannot.

    Raises:
        ValueError: The rows are not probability distributions.

    >>> round(worst_case_epsilon([[0.75, 0.25], [0.25, 0.75]]), 6)
    1.098612
    >>> worst_case_epsilon([[1.0, 0.0], [0.5, 0.5]])
    inf
    """
    table = _table(probabilities)
    possible = table[:, np.any(table > 0.0, axis=0)]
    if np.any(possible == 0.0):
        return math.inf
    logs = np.log(possible)
    return float(np.max(logs.max(axis=0) - logs.min(axis=0)))


def worst_case_delta(probabilities: ArrayLike, epsilon: float) -> float:
    """The smallest δ at `epsilon`: the worst hockey-stick divergence over all ordered pairs of inputs.

    `epsilon` may be inf: what remains is the mass of outputs that prove which input it was.

    >>> worst_case_delta([[1.0, 0.0], [0.5, 0.5]], float("inf"))
    0.5
    """
    table = _table(probabilities)
    epsilon = check_nonnegative("epsilon", epsilon, infinite=True)
    worst = 0.0
    for row in table:
        if math.isinf(epsilon):
            gaps = np.where(table == 0.0, row, 0.0)
        else:
            # In logs, since e^epsilon overflows at 710: row (1 - e^(epsilon - log ratio)) where the ratio is above
            # e^epsilon.
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(row) - np.log(table)
            gaps = np.where(ratio > epsilon, -row * np.expm1(np.minimum(epsilon - ratio, 0.0)), 0.0)
        worst = max(worst, float(gaps.sum(axis=1).max()))
    return min(1.0, worst)


def randomized_response_table(epsilon: float, candidates: ArrayLike) -> NDArray[np.float64]:
    """Output table of selective randomized response (LabelDP; DPSD, Algorithm 2) over the student's candidates.

    Args:
        epsilon: parameter of the answer, natural log.
        candidates: boolean mask of the classes that may be answered, shape (classes,), at least 2 of them.

    Returns:
        Row r: probabilities of every class when the teacher says r, shape (classes, classes).

    >>> round(worst_case_epsilon(randomized_response_table(1.0, [True, True, True, False])), 6)
    1.0
    """
    mask = _mask(candidates)
    size = int(mask.sum())
    peak = 1.0 / (1.0 + (size - 1) * math.exp(-check_nonnegative("epsilon", epsilon)))
    table = np.zeros((mask.size, mask.size))
    table[:, mask] = 1.0 / size
    table[np.ix_(mask, mask)] = peak * math.exp(-epsilon)
    table[np.flatnonzero(mask), np.flatnonzero(mask)] = peak
    return table


def dpsd_eq5_table(epsilon: float, candidates: ArrayLike) -> NDArray[np.float64]:
    """DPSD, Eq. (5) **as printed**: all c classes if the teacher's label is a candidate, else candidates only.

    An answer outside the candidates proves that the label is inside: no ε holds, and δ at ε = inf is
    (c - k)/(e^ε + c - 1). DPSD's Algorithm 2 is `randomized_response_table`.

    >>> mask = [True] * 3 + [False] * 7
    >>> round(worst_case_delta(dpsd_eq5_table(1.0, mask), float("inf")), 6)
    0.597357
    """
    mask = _mask(candidates)
    size, classes = int(mask.sum()), mask.size
    peak = 1.0 / (1.0 + (classes - 1) * math.exp(-check_nonnegative("epsilon", epsilon)))
    table = np.zeros((classes, classes))
    table[:, mask] = 1.0 / size
    table[mask] = peak * math.exp(-epsilon)
    table[np.flatnonzero(mask), np.flatnonzero(mask)] = peak
    return table


def _mask(candidates: ArrayLike) -> NDArray[np.bool_]:
    mask = np.asarray(candidates, dtype=bool)
    if mask.ndim != 1 or int(mask.sum()) < 2:
        raise ValueError(f"candidates must be a boolean vector with at least 2 true entries, got {candidates!r}")
    return mask


def _table(probabilities: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(probabilities, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 1:
        raise ValueError(f"probabilities must have shape (inputs, outputs), got shape {table.shape}")
    if not np.all(table >= 0.0) or not np.allclose(table.sum(axis=1), 1.0, rtol=0.0, atol=1e-9):
        raise ValueError("probabilities must be non-negative with rows that sum to 1")
    return table
