"""How an attacker looks at an output: the larger the score, the stronger the evidence that the record is there.

The best score is the log-likelihood ratio (Neyman and Pearson), up to any increasing function. Any other score gives a
valid audit too, only a weaker one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Score", "learnt_score"]

Score: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float64]]
"""From outputs of n rounds, shape (n, ...), to one number each, shape (n,)."""


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


def _rows(outputs: NDArray[Any], width: int) -> NDArray[np.float64]:
    rows = np.asarray(outputs, dtype=np.float64).reshape(len(outputs), -1)
    if rows.shape[1] != width:
        raise ValueError(f"outputs must have {width} numbers per round, got {rows.shape[1]}")
    return rows
