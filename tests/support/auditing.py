"""The distinguishing game: lower bounds on ε from rounds with and without the record, and exact ones by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from privacy import gaussian_epsilon
from privacy.attacks.result import AuditResult

Numbers: TypeAlias = NDArray[np.float64]
Sampler: TypeAlias = Callable[[int], Any]
"""Plays n independent rounds: from n to outputs (n, ...)."""
Score: TypeAlias = Callable[[Any], Numbers]
"""From outputs of n rounds to one number each, larger for the record."""
Method: TypeAlias = Literal["any", "gaussian"]
"""`gaussian` reaches far higher, and is valid for Gaussian mechanisms only."""


def audit(
    there: Sampler,
    away: Sampler,
    score: Score,
    *,
    trials: int,
    delta: float,
    confidence: float,
    claimed_epsilon: float | None = None,
    method: Method = "any",
) -> AuditResult:
    """The first half of the rounds chooses the threshold, the second half, unseen by the attacker, gives the bound."""

    def play(count: int) -> tuple[Numbers, Numbers]:
        scores = [np.asarray(score(np.asarray(sampler(count))), dtype=np.float64) for sampler in (there, away)]
        assert all(part.shape == (count,) and not np.isnan(part).any() for part in scores)
        return scores[0], scores[1]

    def bound(played: tuple[Numbers, Numbers], thresholds: Numbers) -> Numbers:
        hits, alarms = (np.array([(part >= at).sum() for at in thresholds]) for part in played)
        return lower_bound(hits, alarms, len(played[0]), delta=delta, confidence=confidence, method=method)

    seen = play(trials // 2)
    thresholds = np.unique(np.concatenate(seen))
    if len(thresholds) > 256:  # the tails all, the middle thinned out
        thresholds = np.concatenate([thresholds[:64], thresholds[64:-64][:: len(thresholds) // 128], thresholds[-64:]])
    bounds = bound(seen, thresholds)
    best = np.flatnonzero(bounds == bounds.max())
    chosen = thresholds[best[len(best) // 2], None]
    found = float(bound(play(trials - trials // 2), chosen)[0])
    return AuditResult(found, delta, confidence, claimed_epsilon)


def lower_bound(hits: Any, alarms: Any, trials: int, *, delta: float, confidence: float, method: Method) -> Numbers:
    """ε from Clopper-Pearson limits of both error rates, at (1 - confidence)/2 each, so that both hold together.

    (ε, δ)-DP forces TPR <= e^ε FPR + δ and 1 - FPR <= e^ε (1 - TPR) + δ (Kairouz, Oh and Viswanath 2015); μ-GDP forces
    Phi^-1(TPR) - Phi^-1(FPR) <= μ (Nasr et al. 2023).
    """
    tail = 0.5 * (1.0 - confidence)
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), trials - hits + 1, tail), 0.0)
    high = np.where(alarms < trials, betaincinv(alarms + 1, np.maximum(trials - alarms, 1), 1.0 - tail), 1.0)
    if method == "gaussian":
        apart = np.maximum(ndtri(low) - ndtri(high), 0.0)
        return np.array([gaussian_epsilon(mu, delta) for mu in apart])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log([np.maximum(low - delta, 0.0) / high, np.maximum(1 - high - delta, 0.0) / (1 - low)])
    return np.asarray(np.maximum(ratios.max(axis=0), 0.0))


def worst_case_delta(probabilities: ArrayLike, epsilon: float) -> float:
    """The smallest δ at `epsilon`: the worst hockey-stick divergence over all ordered pairs of inputs."""
    table = np.asarray(probabilities)
    return float(np.maximum(table[:, None] - math.exp(epsilon) * table, 0.0).sum(axis=2).max())


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


def randomized_response_table(epsilon: float, candidates: ArrayLike) -> Numbers:
    """Row r: probability of each class where the teacher says r (LabelDP; DPSD, Algorithm 2)."""
    mask = np.asarray(candidates, dtype=bool)
    size, inside = int(mask.sum()), np.flatnonzero(mask)
    peak = 1.0 / (1.0 + (size - 1) * math.exp(-epsilon))
    table = np.zeros((mask.size, mask.size))
    table[:, mask] = 1.0 / size
    table[np.ix_(mask, mask)] = peak * math.exp(-epsilon)
    table[inside, inside] = peak
    return table
