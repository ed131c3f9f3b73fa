"""Label-only attack by moved images (Choquette-Choo et al. 2021, "Label-only membership inference attacks")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from privacy.attacks.answers import Answers, Shadows


def label_only(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Members are those whose label holds however the image is moved, and is harder for models without them.

    Threat model: the attacker sees the largest class of each query and no probability, and trains K models of the
    attacked model's kind. A logistic regression learns on those models which patterns of right and wrong answers
    members have; beside the patterns it sees how many of the models that have not seen a record are right about it. It
    gives (N,) log-odds of being a member. Each record must be out of two of the K models at least.

    Raises:
        ValueError: The shadow models have either no members or nothing else.
    """
    if shadows.members.all() or not shadows.members.any():
        raise ValueError("shadows must have members and others, got only one of the two")
    away = (~shadows.members)[:, :, None]
    counts, right = away.sum(axis=0), (away & shadows.correct).sum(axis=0)
    contested = shadows.members.any(axis=0)
    rows = []
    for index in range(len(shadows)):
        # Without the model's own answer: it would tell an outsider apart.
        own = away[index]
        others = (right - (own & shadows.correct[index])) / np.maximum(counts - own, 1)
        rows.append(_features(shadows.correct[index], others)[contested])
    learner = LogisticRegression(max_iter=1000)
    learner.fit(np.concatenate(rows), shadows.members[:, contested].ravel())
    return np.asarray(learner.decision_function(_features(target.correct, right / np.maximum(counts, 1))))


def _features(correct: NDArray[np.bool_], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3 Q): right or not, how often others are, and both together."""
    own = correct.astype(np.float64)
    return np.concatenate([own, others, own * others], axis=1)
