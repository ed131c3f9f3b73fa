"""RMIA (Zarifzadeh, Liu and Shokri 2024, "Low-cost high-power membership inference attacks")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit

from privacy.attacks.answers import Answers, Shadows

_GAMMA, _SLOPE, _MOST = 2.0, 0.3, 2000
"""The factor, the paper's a, and how many of the population are used, the first ones."""


def rmia(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """The share of the population that a record beats by a factor of 2 in how far the model favours it.

    A model favours a record x by p(x | model) / p(x), where p(x) is the mean probability of its label over models half
    of which have seen it. Only those that have not are used here; the mean p of the others is taken as
    a · p + 1 - a, as in the paper's offline attack. Strong with one or two models.

    Threat model: the attacker sees probabilities, and trains a few models on data of the same kind without the record;
    it has a population of records that the model has not seen. Each record must be out of one of the K shadows at
    least; records in none are the population, and without any, all are.

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
    # Records that beat all, or none, are told apart by how far they are favoured.
    share = np.mean(beaten, axis=0) / len(population)
    return np.asarray(share + 1e-6 * np.tanh(favoured.mean(axis=1)))
