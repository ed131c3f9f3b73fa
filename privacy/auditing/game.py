"""The distinguishing game: many rounds with the record, as many without, and an attacker who says which was which."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.auditing.bounds import clopper_pearson_epsilon, gaussian_audit_epsilon, gaussian_audit_mu
from privacy.checks import check_count, check_delta
from privacy.events import Release

__all__ = ["AuditResult", "Method", "Sampler", "Score", "audit", "learnt_score"]

Sampler: TypeAlias = Callable[[int], Any]
"""Plays n independent rounds of one mechanism on one input: from n to outputs, array or tensor of shape (n, ...)."""

Score: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float64]]
"""From outputs of n rounds, shape (n, ...), to one number each, shape (n,)."""

Method: TypeAlias = Literal["clopper_pearson", "gaussian"]
"""Of `audit`; the bound of many records in one run, `one_run`, is that of `privacy.attacks`."""

_CHUNK = 1000
_MAX_THRESHOLDS = 256
_LARGEST = float(np.finfo(np.float64).max)


_METHODS = {
    "clopper_pearson": "Clopper-Pearson limits, valid for any mechanism",
    "gaussian": "a bound that is valid for Gaussian mechanisms only",
    "one_run": "a bound on guesses about many records of one run, valid for any mechanism",
}


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε, what it was reached with, and what it says about a claim.

    Attributes:
        epsilon_lower: No ε below this one holds at `delta`, at `confidence`. 0 shows nothing.
        delta: Of the bound and of the claim.
        confidence: Probability that the bound is valid.
        method: `clopper_pearson`, `gaussian` (Gaussian mechanisms **only**) or `one_run`.
        trials: Rounds of either kind that the bound rests on; of `one_run`, guesses.
        hits: Rounds with the record in which the attacker said so; right guesses.
        alarms: Rounds without it in which the attacker said it was there; wrong guesses.
        threshold: Score above which the attacker says that the record is there.
        claimed_epsilon: Upper bound that was claimed at `delta`, None where none was.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    method: str
    trials: int
    hits: int
    alarms: int
    threshold: float | None = None
    claimed_epsilon: float | None = None

    @property
    def fails(self) -> bool:
        """Whether a claim was made that the bound contradicts."""
        return self.claimed_epsilon is not None and self.epsilon_lower > self.claimed_epsilon

    @property
    def statement(self) -> str:
        """The finding in plain words.

        >>> AuditResult(3.98, 1e-5, 0.95, "clopper_pearson", 1000, 990, 10, 0.5, claimed_epsilon=1.0).statement
        'epsilon is at least 3.98 at delta=1e-05, with 95% confidence (Clopper-Pearson limits, valid for any mechanism;
        1000 rounds with the record and 1000 without it). The claim fails: it says that epsilon is at most 1.'
        """
        basis = f"{self.trials} rounds with the record and {self.trials} without it"
        if self.method == "one_run":
            basis = f"{self.hits} of {self.trials} guesses right"
        text = (
            f"epsilon is at least {self.epsilon_lower:.4g} at delta={self.delta:g}, "
            f"with {100 * self.confidence:.6g}% confidence ({_METHODS[self.method]}; {basis})."
        )
        if self.claimed_epsilon is None:
            return text
        if self.fails:
            return f"{text} The claim fails: it says that epsilon is at most {self.claimed_epsilon:.4g}."
        return (
            f"{text} This does not contradict the claim that epsilon is at most {self.claimed_epsilon:.4g}; "
            "it does not confirm it either."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the verdict and the statement."""
        return {**dataclasses.asdict(self), "fails": self.fails, "statement": self.statement}


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
