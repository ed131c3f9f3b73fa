"""Membership inference and model inversion attacks on finished classifiers.

Membership attacks score records, and `AttackResult` measures how well the scores tell members apart. Inversion attacks
draw images, and `InversionResult` measures how much of the private classes they show. Run each attack on an
`overfitted` model as well: one that fails there proves nothing. A failed attack never proves privacy, since a better
one may exist.
"""

from privacy.attacks.answers import (
    Answers as Answers,
    Records as Records,
    Shadows as Shadows,
    answers_of as answers_of,
    train_shadows as train_shadows,
)
from privacy.attacks.membership import MEMBERSHIP as MEMBERSHIP, attack_each as attack_each, lira as lira
from privacy.attacks.result import AttackResult as AttackResult
