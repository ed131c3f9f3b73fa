"""Membership attacks: each scores records by the answers of the attacked model and of shadow models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression

from privacy.attacks.answers import Answers, Shadows
from privacy.attacks.result import AttackResult

_PER_RECORD = 32
"""In LiRA, from this many models of a kind on, each record has its own variance; with fewer, all share one."""
_LEAST_STD = 1e-6
_GAMMA, _SLOPE, _MOST = 2.0, 0.3, 2000
"""RMIA's γ and a, and the number of population records used, the first ones."""


def loss_threshold(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Scores records by the negative cross-entropy (N,), which is larger for members.

    Yeom, Giacomelli, Fredrikson and Jha 2018, "Privacy risk in machine learning".

    Threat model: the attacker sees the model's probability for the record's label and trains nothing. It compares
    records with each other, so that a hard member looks like a non-member. Only the first query, the image itself, is
    used; the shadows are not.
    """
    return -np.logaddexp(0.0, -target.confidences[:, 0])


def lira(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """LiRA: likelihood ratio of a record's confidence under models that have seen it and models that have not.

    Carlini et al. 2022, "Membership inference attacks from first principles".

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


def rmia(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """RMIA: share of the population whose likelihood ratio a record's exceeds by a factor of at least γ = 2.

    Zarifzadeh, Liu and Shokri 2024, "Low-cost high-power membership inference attacks".

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


def label_only(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Log-odds (N,) of membership: members keep their label under shifts that models without them get wrong.

    Choquette-Choo et al. 2021, "Label-only membership inference attacks".

    Threat model: the attacker sees only the predicted class of each query and trains K shadow models. On these a
    logistic regression learns the members' patterns of right and wrong answers; its other features are the shares of
    the models without a record that are right about it. Each record must be out of at least two of the K models.
    """
    away = (~shadows.members)[:, :, None]
    counts, right = away.sum(axis=0), (away & shadows.correct).sum(axis=0)
    contested = shadows.members.any(axis=0)
    # Without each model's own answer, which would identify non-members.
    others = (right - (away & shadows.correct)) / np.maximum(counts - away, 1)
    rows = _features(shadows.correct, others)[:, contested]
    learner = LogisticRegression(max_iter=1000)
    learner.fit(rows.reshape(-1, rows.shape[2]), shadows.members[:, contested].ravel())
    return np.asarray(learner.decision_function(_features(target.correct, right / np.maximum(counts, 1))))


def _features(correct: NDArray[np.bool_], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Features (..., N, 3 Q): whether the model is right, the share of others that are, and their product."""
    own = correct.astype(np.float64)
    return np.concatenate([own, others, own * others], axis=-1)


MembershipAttack: TypeAlias = Callable[[Answers, Shadows], NDArray[np.float64]]
"""Maps the answers of the attacked model and of shadow models to one score per record, larger for members."""

MEMBERSHIP: Mapping[str, MembershipAttack] = {
    "loss": loss_threshold,
    "lira": lira,
    "lira-offline": lira_offline,
    "rmia": rmia,
    "label-only": label_only,
}
"""Attacks by their names on the command line."""


def attack_each(
    models: Shadows, *, targets: int, method: MembershipAttack = lira, kinds: NDArray[np.str_] | None = None
) -> dict[str, AttackResult]:
    """Attacks the first models, using the remaining ones as shadows.

    No target is another one's shadow: given the shadows, targets are independent, and `AttackResult.audited` is valid
    for all of them together.

    Args:
        models: Answers of targets and shadows.
        targets: Number of attacked models; at least two others must be left.
        method: The attack.
        kinds: (N,), the kind of each record; None means that all are of the kind `record`.

    Returns:
        Results by kind, for all targets together, on records that at least one shadow has seen and at least two have
        not. Kinds without members, such as the population, or without non-members are left out.
    """
    shadows = Shadows(models.confidences[targets:], models.correct[targets:], models.members[targets:])
    seen = shadows.members.sum(axis=0)
    kept = (seen >= 1) & (seen <= len(shadows.members) - 2)
    asked = zip(models.confidences[:targets], models.correct[:targets], strict=True)
    scores = np.stack([method(Answers(*one), shadows) for one in asked])
    groups = np.full(len(kept), "record") if kinds is None else kinds
    return {
        str(kind): AttackResult(scores[:, taken], models.members[:targets, taken], coins=True)
        for kind in dict.fromkeys(groups)
        if len(np.unique(models.members[:targets, taken := kept & (groups == kind)])) == 2
    }
