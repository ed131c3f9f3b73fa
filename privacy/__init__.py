"""Privacy accounting: exact where exact is known, published where a paper claims it. Knows nothing of Lightning."""

from __future__ import annotations

from privacy.account import Budget, BudgetExceeded, PrivacyAccount
from privacy.accounting.calibration import calibrate_count, calibrate_noise
from privacy.accounting.composition import compose
from privacy.events import (
    Gaussian,
    LabelOnly,
    LaplaceVotes,
    OneOf,
    RandomizedResponse,
    Release,
    Repeated,
    RevealedGaussian,
    SampledGaussian,
    Unbounded,
)
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.neighbours import Relation, Unit
from privacy.numerics.epsilon import gaussian_epsilon
from privacy.plan import Charge
from privacy.published import published_dgd_epsilon, published_dpdfd_epsilon

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Charge",
    "Gaussian",
    "Guarantee",
    "LabelOnly",
    "LaplaceVotes",
    "Ledger",
    "LedgerError",
    "OneOf",
    "PrivacyAccount",
    "RandomizedResponse",
    "Relation",
    "Release",
    "Repeated",
    "RevealedGaussian",
    "SampledGaussian",
    "Training",
    "Unbounded",
    "Unit",
    "calibrate_count",
    "calibrate_noise",
    "compose",
    "gaussian_epsilon",
    "published_dgd_epsilon",
    "published_dpdfd_epsilon",
]
