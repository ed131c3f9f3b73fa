"""RMIA (Zarifzadeh, Liu and Shokri 2024, "Low-cost high-power membership inference attacks")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit

from privacy.attacks.answers import Answers, Shadows

_GAMMA, _SLOPE, _MOST = 2.0, 0.3, 2000
"""The paper's γ and a, and the number of population records used, the first ones."""


def rmia(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Share of the population whose likelihood ratio a record's exceeds by a factor of at least γ = 2.

    The ratio of a record x is p(x | model) / p(x), where p(x) is the mean probability of its label over models half of
    which have seen it. As in the paper's offline attack, only models that have not are used, with mean probability p,
    and those that have are assumed to have a · p + 1 - a. The attack is strong with one or two models.

    Threat model: the attacker sees probabilities, trains a few models without the record on similar data, and has a
    population of records that the model has not seen. Each record must be out of at least one of the K shadows; records
    in no shadow are the population, or all records if there are none.

    Returns:
        (N,) shares from 0 to 1, the mean over queries, larger for members.
    """
    away = ~shadows.members[:, :, None]
    counts = away.sum(axis=0)
    chances = np.where(away, np.exp(log_expit(shadows.confidences)), 0.0).sum(axis=0)
    out = np.divide(chances, counts, out=np.full(chances.shape, np.nan), where=counts > 0)
    usual = np.log(0.5 * ((1 + _SLOPE) * out + 1 - _SLOPE))
    favoured = log_expit(target.confidences) - usual
    unseen = ~shadows.members.any(axis=0)
    population = np.sort(favoured[unseen if unseen.any() else slice(None)][:_MOST], axis=0)
    beaten = [
        np.searchsorted(population[:, query], favoured[:, query] - np.log(_GAMMA), side="right")
        for query in range(favoured.shape[1])
    ]
    # The ratio breaks ties, such as between records that exceed all, or none.
    share = np.mean(beaten, axis=0) / len(population)
    return np.asarray(share + 1e-6 * np.tanh(favoured.mean(axis=1)))
