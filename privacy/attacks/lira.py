"""LiRA, the likelihood ratio attack (Carlini et al. 2022, "Membership inference attacks from first principles")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.attacks.answers import Answers, Shadows

_PER_RECORD = 32
"""From this many models of a kind on, each record has its own variance; with fewer, all share one, as in the paper."""
_LEAST_STD = 1e-6


def lira(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Likelihood ratio of a record's confidence under models that have seen it and models that have not.

    Threat model: the attacker sees probabilities and trains K shadow models, about half of them on the record.
    Logit-scaled confidences are modelled as Gaussian in either case; the log ratios of several queries per image are
    averaged, as in the authors' code. Each record must be in at least one of the K shadows and out of at least one;
    otherwise see `lira_offline`.

    Returns:
        (N,) log-likelihood ratios, larger for members; nan for records that are in no shadow or in all.
    """
    seen = shadows.members[:, :, None]
    there = _log_density(target.confidences, *_gaussian(shadows.confidences, seen))
    away = _log_density(target.confidences, *_gaussian(shadows.confidences, ~seen))
    return np.asarray((there - away).mean(axis=1))


def lira_offline(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Confidence of the model, standardised by models that have not seen the record.

    Threat model: as for `lira`, but the shadow models are trained without the record, before the attacker knows it;
    shadows that have seen it are left out. Each record must be out of at least two of the K shadows.

    Returns:
        (N,) standardised confidences, larger for members; Φ of them is the paper's score.
    """
    middle, std = _gaussian(shadows.confidences, ~shadows.members[:, :, None])
    return np.asarray(((target.confidences - middle) / std).mean(axis=1))


def _gaussian(
    confidences: NDArray[np.float64], taken: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation over the selected models, (N, Q); nan for records without any."""
    counts = taken.sum(axis=0).astype(np.float64)
    known = np.where(counts > 0, counts, np.nan)
    middle = np.where(taken, confidences, 0.0).sum(axis=0) / known
    squares = np.where(taken, (confidences - middle) ** 2, 0.0).sum(axis=0)
    # With few models, all records share one variance per query.
    freedom = np.nansum(np.where(counts > 1, known - 1, 0.0), axis=0)
    pooled = np.nansum(np.where(counts > 1, squares, 0.0), axis=0) / np.maximum(freedom, 1)
    own = squares / np.maximum(known - 1, 1)
    variance = np.where(counts >= _PER_RECORD, own, pooled)
    return middle, np.sqrt(np.maximum(variance, _LEAST_STD**2))


def _log_density(
    values: NDArray[np.float64], middle: NDArray[np.float64], std: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(-0.5 * ((values - middle) / std) ** 2 - np.log(std))
