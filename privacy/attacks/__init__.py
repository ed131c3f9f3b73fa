"""Membership inference and model inversion attacks on finished classifiers.

Membership attacks score records, and `AttackResult` measures how well the scores tell members apart. Inversion attacks
draw images, and `InversionResult` measures how much of the private classes they show. Run each attack on an
`overfitted` model as well: one that fails there proves nothing. A failed attack never proves privacy, since a better
one may exist.
"""

from __future__ import annotations

from privacy.attacks.answers import Answers, Records, Shadows, answers_of, moved, train_shadows
from privacy.attacks.audit import AuditResult
from privacy.attacks.background_inversion import background_inversion
from privacy.attacks.copied import copied, passes_gradients
from privacy.attacks.data_free_inversion import data_free_inversion
from privacy.attacks.generative_inversion import generative_inversion
from privacy.attacks.gradient_inversion import gradient_inversion
from privacy.attacks.inversion import InversionResult, judged
from privacy.attacks.label_only import label_only
from privacy.attacks.lira import lira, lira_offline
from privacy.attacks.loss_threshold import loss_threshold
from privacy.attacks.membership import MEMBERSHIP, attack_each
from privacy.attacks.overfitted import overfitted
from privacy.attacks.result import AttackResult
from privacy.attacks.rmia import rmia

__all__ = [
    "MEMBERSHIP",
    "Answers",
    "AttackResult",
    "AuditResult",
    "InversionResult",
    "Records",
    "Shadows",
    "answers_of",
    "attack_each",
    "background_inversion",
    "copied",
    "data_free_inversion",
    "generative_inversion",
    "gradient_inversion",
    "judged",
    "label_only",
    "lira",
    "lira_offline",
    "loss_threshold",
    "moved",
    "overfitted",
    "passes_gradients",
    "rmia",
    "train_shadows",
]
