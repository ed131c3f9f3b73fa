"""The distinguishing game: many rounds with the record, as many without, and an attacker who says which was which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.auditing.bounds import clopper_pearson_epsilon, gaussian_audit_epsilon, gaussian_audit_mu
from privacy.auditing.result import AuditResult
from privacy.auditing.scores import Score, learnt_score
from privacy.checks import check_count, check_delta
from privacy.events import Release

__all__ = ["Method", "Sampler", "audit"]

Sampler: TypeAlias = Callable[[int], Any]
"""Plays n independent rounds of one mechanism on one input: from n to outputs, array or tensor of shape (n, ...)."""

Method: TypeAlias = Literal["clopper_pearson", "gaussian"]

_CHUNK = 1000
_MAX_THRESHOLDS = 256
_LARGEST = float(np.finfo(np.float64).max)


def audit(
    mechanism_in: Sampler,
    mechanism_out: Sampler,
    *,
    trials: int,
    delta: float,
    confidence: float = 0.95,
    score: Score | None = None,
    method: Method = "clopper_pearson",
    release: Release | None = None,
    claimed_epsilon: float | None = None,
) -> AuditResult:
    """A lower bound on the ε of a mechanism, from its outputs on two neighbouring inputs.

    The first half of the rounds teaches the attacker (the score where none is given, then the threshold); the second
    half, which the attacker has not seen, gives the bound. So the bound is valid however the attacker was chosen. The
    two halves must therefore be independent: no state may pass from one round of a mechanism to the next.

    Args:
        mechanism_in: Plays rounds on the data with the record.
        mechanism_out: Plays rounds on the neighbouring data.
        trials: Rounds of **each** kind, at least 8; half of them count.
        delta: Of the claim, [0, 1), above 0 for the method `gaussian`.
        confidence: Probability in (0, 1) that the bound is valid.
        score: From outputs to numbers, larger for the record; None learns one from the first quarter of the rounds.
        method: `clopper_pearson` for any mechanism. `gaussian`, which reaches far higher, only for Gaussian ones and
            what is computed from them: its bound assumes the shape of their trade-off curve.
        release: What the mechanism is charged as; must be Gaussian (have a `gaussian_mu`) for the method `gaussian`.
        claimed_epsilon: Claimed upper bound at `delta`, for the verdict.

    Returns:
        The bound and what it says about the claim.

    Raises:
        ValueError: Invalid settings, the method `gaussian` for what is not Gaussian, or outputs and scores that
            do not have one entry per round.

    >>> from privacy.mechanisms.noise import ReproducibleNoise
    >>> noise = ReproducibleNoise(seed=0)
    >>> found = audit(
    ...     lambda n: 1.0 + noise.gaussian((n,)), lambda n: noise.gaussian((n,)),
    ...     trials=4000, delta=1e-5, claimed_epsilon=0.5,
    ... )
    >>> found.fails, found.epsilon_lower < 4.3772  # the exact epsilon
    (True, True)
    """
    rounds_each = check_count("trials", trials, minimum=8)
    delta = check_delta(delta, zero=method == "clopper_pearson")
    if method not in ("clopper_pearson", "gaussian"):
        raise ValueError(f"method must be clopper_pearson or gaussian, got {method!r}")
    if method == "gaussian" and (release is None or release.gaussian_mu is None):
        raise ValueError(
            "release must be a Gaussian one for the method gaussian, whose bound holds for nothing else; "
            f"got {release!r}: use clopper_pearson"
        )
    first = rounds_each // 2
    if score is None:
        quarter = first // 2
        score = learnt_score(_outputs(mechanism_in, quarter), _outputs(mechanism_out, quarter))
        first -= quarter
    seen_in, seen_out = _scores(mechanism_in, first, score), _scores(mechanism_out, first, score)
    threshold = _best_threshold(seen_in, seen_out, delta=delta, confidence=confidence, method=method)
    count = rounds_each - rounds_each // 2
    hits = int((_scores(mechanism_in, count, score) > threshold).sum())
    alarms = int((_scores(mechanism_out, count, score) > threshold).sum())
    bound = clopper_pearson_epsilon if method == "clopper_pearson" else gaussian_audit_epsilon
    return AuditResult(
        epsilon_lower=bound(hits, alarms, count, delta, confidence),
        delta=delta,
        confidence=float(confidence),
        method=method,
        trials=count,
        hits=hits,
        alarms=alarms,
        threshold=threshold,
        claimed_epsilon=claimed_epsilon,
    )


def _best_threshold(
    seen_in: NDArray[np.float64], seen_out: NDArray[np.float64], *, delta: float, confidence: float, method: Method
) -> float:
    """The threshold with the largest bound on these scores; the middle one where several are alike."""
    there, away, count = np.sort(seen_in), np.sort(seen_out), len(seen_in)
    thresholds = _thresholds(np.unique(np.concatenate([there, away])))
    hits = count - np.searchsorted(there, thresholds, side="right")
    alarms = count - np.searchsorted(away, thresholds, side="right")
    # Bounds on epsilon for a Gaussian mechanism grow with mu, which is far cheaper.
    bounds = [
        clopper_pearson_epsilon(int(hit), int(alarm), count, delta, confidence)
        if method == "clopper_pearson"
        else gaussian_audit_mu(int(hit), int(alarm), count, confidence)
        for hit, alarm in zip(hits, alarms, strict=True)
    ]
    best = np.flatnonzero(np.asarray(bounds) == max(bounds))
    return float(thresholds[best[len(best) // 2]])


def _thresholds(distinct: NDArray[np.float64]) -> NDArray[np.float64]:
    """Between neighbouring scores, the tails all and the middle thinned out."""
    if len(distinct) == 1:
        return distinct
    gaps = np.arange(len(distinct) - 1)
    if len(gaps) > _MAX_THRESHOLDS:
        share = _MAX_THRESHOLDS // 4
        middle = np.linspace(0, len(gaps) - 1, 2 * share).astype(np.int64)
        gaps = np.unique(np.concatenate([gaps[:share], middle, gaps[-share:]]))
    finite = np.clip(distinct, -_LARGEST, _LARGEST)
    return np.asarray(0.5 * finite[gaps] + 0.5 * finite[gaps + 1], dtype=np.float64)


def _scores(sampler: Sampler, count: int, score: Score) -> NDArray[np.float64]:
    parts = []
    # In parts, so that large outputs are never all in memory.
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        part = np.asarray(score(_outputs(sampler, size)), dtype=np.float64)
        if part.shape != (size,) or np.isnan(part).any():
            raise ValueError(f"score must give one number per round, shape ({size},), no NaN; got shape {part.shape}")
        parts.append(part)
    return np.concatenate(parts)


def _outputs(sampler: Sampler, count: int) -> NDArray[Any]:
    drawn = sampler(count)
    if isinstance(drawn, torch.Tensor):
        drawn = drawn.detach().cpu()
        drawn = (drawn.double() if drawn.is_floating_point() else drawn).numpy()
    outputs = np.asarray(drawn)
    if outputs.ndim < 1 or len(outputs) != count:
        raise ValueError(f"a mechanism must give {count} outputs for {count} rounds, got shape {outputs.shape}")
    return outputs
