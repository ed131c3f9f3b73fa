"""Best attacks on mechanisms whose distribution is known, and output tables of randomized responses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from support.auditing import Sampler, Score

Table = NDArray[np.float64]


def rounds(mechanism: Callable[..., Any], *inputs: Any) -> Sampler:
    """A sampler out of a mechanism that is called once per round, always on the same input."""
    return lambda count: torch.stack([torch.as_tensor(mechanism(*inputs)) for _ in range(count)])


def gaussian_score(center_in: ArrayLike, center_out: ArrayLike) -> Score:
    """Log-likelihood ratio, up to scale and offset, for noise N(0, s² I) around what is released with and without."""
    direction = np.ravel(center_in).astype(np.float64) - np.ravel(center_out)
    return lambda outputs: outputs.reshape(len(outputs), -1).astype(np.float64) @ direction


def table_score(row_in: ArrayLike, row_out: ArrayLike) -> Score:
    """The same for numbers of answers, each drawn independently with the probabilities of one of two rows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.log(row_in) - np.log(row_out), posinf=math.inf, neginf=-math.inf)
    return lambda outputs: ratio[np.asarray(outputs).reshape(len(outputs), -1)].sum(axis=1)


def randomized_response_table(epsilon: float, candidates: ArrayLike) -> Table:
    """Row r: probability of each class where the teacher says r (LabelDP; DPSD, Algorithm 2)."""
    mask = np.asarray(candidates, dtype=bool)
    size, inside = int(mask.sum()), np.flatnonzero(mask)
    peak = 1.0 / (1.0 + (size - 1) * math.exp(-epsilon))
    table = np.zeros((mask.size, mask.size))
    table[:, mask] = 1.0 / size
    table[np.ix_(mask, mask)] = peak * math.exp(-epsilon)
    table[inside, inside] = peak
    return table
