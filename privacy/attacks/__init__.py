"""Membership inference and model inversion attacks on finished classifiers.

Membership attacks score records, and `AttackResult` measures how well the scores tell members apart. Inversion attacks
draw images, and `InversionResult` measures how much of the private classes they show. Run each attack on an
`overfitted` model as well: one that fails there proves nothing. A failed attack never proves privacy, since a better
one may exist.
"""

from __future__ import annotations

from privacy.attacks.answers import Answers, Records, Shadows, answers_of, train_shadows
from privacy.attacks.membership import MEMBERSHIP, attack_each, lira
from privacy.attacks.result import AttackResult

__all__ = [
    "MEMBERSHIP",
    "Answers",
    "AttackResult",
    "Records",
    "Shadows",
    "answers_of",
    "attack_each",
    "lira",
    "train_shadows",
]
