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


def _table(probabilities: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(probabilities, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 1:
        raise ValueError(f"probabilities must have shape (inputs, outputs), got shape {table.shape}")
    if not np.all(table >= 0.0) or not np.allclose(table.sum(axis=1), 1.0, rtol=0.0, atol=1e-9):
        raise ValueError("probabilities must be non-negative with rows that sum to 1")
    return table
