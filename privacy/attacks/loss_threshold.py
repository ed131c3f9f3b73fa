"""Loss threshold (Yeom, Giacomelli, Fredrikson and Jha 2018, "Privacy risk in machine learning")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.attacks.answers import Answers, Shadows


def loss_threshold(target: Answers, shadows: Shadows) -> NDArray[np.float64]:
    """Score records by the negative cross-entropy (N,), which is larger for members.

    Threat model: the attacker sees the model's probability for the record's label and trains nothing. It compares
    records with each other, so that a hard member looks like a non-member. Only the first query, the image itself, is
    used; the shadows are not.
    """
    return -np.logaddexp(0.0, -target.confidences[:, 0])
