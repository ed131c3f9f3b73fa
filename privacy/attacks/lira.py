"""LiRA, the likelihood ratio attack (Carlini et al. 2022, "Membership inference attacks from first principles")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.attacks.answers import Answers, Shadows

_PER_RECORD = 32
"""So many models of a kind give a record a variance of its own; of fewer, all records have one, as in the paper."""
_LEAST_STD = 1e-6


def lira(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """How much likelier a record's confidence is for a model that has seen it than for one that has not.

    Threat model: the attacker sees probabilities, and trains K models of the attacked model's kind on data that hold
    the record in about half of them. Confidences, logit-scaled, count as Gaussian in either case; of several queries an
    image, the mean of their ratios counts, as in the authors' code.
    Each record must be in one of the K shadows at least and out of one at least; where it is not, see `lira_offline`.

    Returns:
        (N,) log-likelihood ratios, larger for members; of records that are in no model, or in all, nan.
    """
    seen = shadows.members[:, :, None]
    there = _log_density(target.confidences, *_gaussian(shadows.confidences, seen))
    away = _log_density(target.confidences, *_gaussian(shadows.confidences, ~seen))
    return np.asarray((there - away).mean(axis=1))


def lira_offline(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """How unusually confident a model is for one that has not seen the record.

    Threat model: as of `lira`, but the shadow models are trained before the attacker knows which record is asked
    about, on data without it. Those that hold it are left out.
    Each record must be out of two of the K shadows at least.

    Returns:
        (N,) standardised confidences, larger for members: Φ of one is the paper's score.
    """
    middle, std = _gaussian(shadows.confidences, ~shadows.members[:, :, None])
    return np.asarray(((target.confidences - middle) / std).mean(axis=1))


def _gaussian(
    confidences: NDArray[np.float64], taken: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation over the models that are taken, (N, Q); nan of a record of which none is."""
    counts = taken.sum(axis=0).astype(np.float64)
    known = np.where(counts > 0, counts, np.nan)
    middle = np.where(taken, confidences, 0.0).sum(axis=0) / known
    squares = np.where(taken, (confidences - middle) ** 2, 0.0).sum(axis=0)
    # Where there are few models, all records together: the variance of one query.
    freedom = np.nansum(np.where(counts > 1, known - 1, 0.0), axis=0)
    pooled = np.nansum(np.where(counts > 1, squares, 0.0), axis=0) / np.maximum(freedom, 1)
    own = squares / np.maximum(known - 1, 1)
    variance = np.where(counts >= _PER_RECORD, own, pooled)
    return middle, np.sqrt(np.maximum(variance, _LEAST_STD**2))


def _log_density(
    values: NDArray[np.float64], middle: NDArray[np.float64], std: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(-0.5 * ((values - middle) / std) ** 2 - np.log(std))
