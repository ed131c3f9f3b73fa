"""Loss threshold (Yeom, Giacomelli, Fredrikson and Jha 2018, "Privacy risk in machine learning")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.attacks.answers import Answers, Shadows


def loss_threshold(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Members have a small loss: the score (N,) is minus the cross-entropy, larger for members.

    Threat model: the attacker sees the model's probability for the record's label, and trains nothing. It compares a
    record with other records and not with itself, so that a hard member looks like no member. Of the queries only the
    first, the image itself, counts; the shadows are unused.
    """
    return -np.logaddexp(0.0, -target.confidences[:, 0])
