"""How an attacker looks at an output: the larger the score, the stronger the evidence that the record is there.

The best score is the log-likelihood ratio (Neyman and Pearson), up to any increasing function. Any other score gives a
valid audit too, only a weaker one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_positive

__all__ = ["Score", "gaussian_score", "laplace_score", "learnt_score", "table_score"]

Score: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float64]]
"""From outputs of n rounds, shape (n, ...), to one number each, shape (n,)."""


def gaussian_score(center_in: ArrayLike, center_out: ArrayLike) -> Score:
    """Log-likelihood ratio, up to scale and offset, for noise N(0, s² I) around the two centres.

    Args:
        center_in: What is released with the record, before noise; any shape.
        center_out: The same without it.

    >>> gaussian_score([1.0, 0.0], [0.0, 0.0])(np.array([[2.0, 7.0], [-1.0, 7.0]])).tolist()
    [2.0, -1.0]
    """
    direction = _flat(center_in) - _flat(center_out)
    return lambda outputs: _rows(outputs, direction.size) @ direction


def laplace_score(center_in: ArrayLike, center_out: ArrayLike, *, scale: float) -> Score:
    """Log-likelihood ratio for Laplace noise of one scale around the two centres.

    >>> laplace_score([1.0], [0.0], scale=2.0)(np.array([[9.0], [0.5], [-9.0]])).tolist()
    [0.5, 0.0, -0.5]
    """
    there, away, width = _flat(center_in), _flat(center_out), check_positive("scale", scale)

    def score(outputs: NDArray[Any]) -> NDArray[np.float64]:
        rows = _rows(outputs, there.size)
        ratio: NDArray[np.float64] = (np.abs(rows - away) - np.abs(rows - there)).sum(axis=1) / width
        return ratio

    return score


def table_score(row_in: ArrayLike, row_out: ArrayLike) -> Score:
    """Log-likelihood ratio for outputs that are numbers of answers, each drawn independently from the same two rows.

    Args:
        row_in: Probability of each answer with the record, shape (answers,).
        row_out: The same without it. An answer that only one of them can give scores plus or minus infinity.

    >>> table_score([0.5, 0.5, 0.0], [0.25, 0.5, 0.25])(np.array([1, 2])).tolist()
    [0.0, -inf]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(_flat(row_in)) - np.log(_flat(row_out))
    # An answer that neither can give.
    ratio = np.where(np.isnan(ratio), 0.0, ratio)
    return lambda outputs: ratio[np.asarray(outputs).reshape(len(outputs), -1)].sum(axis=1)


def learnt_score(outputs_in: NDArray[Any], outputs_out: NDArray[Any]) -> Score:
    """A score for outputs whose distribution is not known, from examples of both kinds, shape (n, ...).

    Whole numbers: logarithms of the smoothed ratio of frequencies, summed over positions as if these were independent.
    Others: the projection on the difference of the two means, which is the log-likelihood ratio under equal noise.

    The examples must not be used again for the bound (`audit` sees to that).
    """
    if not np.issubdtype(outputs_in.dtype, np.floating):
        return _frequency_score(outputs_in, outputs_out)
    direction = outputs_in.reshape(len(outputs_in), -1).mean(axis=0) - outputs_out.reshape(len(outputs_out), -1).mean(
        axis=0
    )
    return lambda outputs: _rows(outputs, direction.size) @ direction


def _frequency_score(outputs_in: NDArray[Any], outputs_out: NDArray[Any]) -> Score:
    there, away = (np.asarray(part).reshape(len(part), -1).astype(np.int64) for part in (outputs_in, outputs_out))
    values = np.unique(np.concatenate([there.ravel(), away.ravel()]))

    def log_frequencies(part: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.stack([(part == value).sum(axis=0) for value in values], axis=1)
        logs: NDArray[np.float64] = np.log((counts + 0.5) / (len(part) + 0.5 * len(values)))
        return logs

    ratio = log_frequencies(there) - log_frequencies(away)

    def score(outputs: NDArray[Any]) -> NDArray[np.float64]:
        answers = np.asarray(outputs).reshape(len(outputs), -1).astype(np.int64)
        index = np.searchsorted(values, answers).clip(max=len(values) - 1)
        # An answer never seen before says nothing.
        known = values[index] == answers
        total: NDArray[np.float64] = np.where(known, ratio[np.arange(ratio.shape[0]), index], 0.0).sum(axis=1)
        return total

    return score


def _flat(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _rows(outputs: NDArray[Any], width: int) -> NDArray[np.float64]:
    rows = np.asarray(outputs, dtype=np.float64).reshape(len(outputs), -1)
    if rows.shape[1] != width:
        raise ValueError(f"outputs must have {width} numbers per round, got {rows.shape[1]}")
    return rows
