"""Label-only attack with shifted images (Choquette-Choo et al. 2021, "Label-only membership inference attacks")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from privacy.attacks.answers import Answers, Shadows


def label_only(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Log-odds (N,) of membership: members keep their label under shifts that models without them get wrong.

    Threat model: the attacker sees only the predicted class of each query and trains K shadow models. On these a
    logistic regression learns the members' patterns of right and wrong answers; its other features are the shares of
    the models without a record that are right about it. Each record must be out of at least two of the K models.

    Raises:
        ValueError: The shadow models have only members, or none.
    """
    if shadows.members.all() or not shadows.members.any():
        raise ValueError("shadows must have members and others, got only one of the two")
    away = (~shadows.members)[:, :, None]
    counts, right = away.sum(axis=0), (away & shadows.correct).sum(axis=0)
    contested = shadows.members.any(axis=0)
    rows = []
    for index in range(len(shadows)):
        # Without the model's own answer, which would identify non-members.
        own = away[index]
        others = (right - (own & shadows.correct[index])) / np.maximum(counts - own, 1)
        rows.append(_features(shadows.correct[index], others)[contested])
    learner = LogisticRegression(max_iter=1000)
    learner.fit(np.concatenate(rows), shadows.members[:, contested].ravel())
    return np.asarray(learner.decision_function(_features(target.correct, right / np.maximum(counts, 1))))


def _features(correct: NDArray[np.bool_], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Features (N, 3 Q): whether the model is right, the share of others that are, and their product."""
    own = correct.astype(np.float64)
    return np.concatenate([own, others, own * others], axis=1)
