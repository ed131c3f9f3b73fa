"""Privacy accounting: exact where exact is known, published where a paper claims it. Knows nothing of Lightning."""

from __future__ import annotations

from privacy.account import Budget, BudgetExceeded, PrivacyAccount
from privacy.accounting.calibration import calibrate_count, calibrate_noise
from privacy.accounting.composition import compose
from privacy.annotators import Annotator, DirectGradientAnnotator, DirectLabelAnnotator, GradientAnnotator
from privacy.annotators.label import LabelAnnotator
from privacy.annotators.mean_response import MeanResponseAnnotator
from privacy.annotators.response import ResponseAnnotator
from privacy.annotators.votes import VoteAnnotator
from privacy.events import (
    DiscreteGaussian,
    Gaussian,
    LabelOnly,
    LaplaceVotes,
    OneOf,
    RandomizedResponse,
    Release,
    Repeated,
    RevealedGaussian,
    SampledDiscreteGaussian,
    SampledGaussian,
    Unbounded,
)
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.mechanisms.noise import NoiseSource, ReproducibleNoise, SystemNoise
from privacy.neighbours import Relation, Unit
from privacy.numerics.gaussian import gaussian_epsilon
from privacy.published import published_dgd_epsilon, published_dpdfd_epsilon

__all__ = [
    "Annotator",
    "Budget",
    "BudgetExceeded",
    "DirectGradientAnnotator",
    "DirectLabelAnnotator",
    "DiscreteGaussian",
    "Gaussian",
    "GradientAnnotator",
    "Guarantee",
    "LabelAnnotator",
    "LabelOnly",
    "LaplaceVotes",
    "Ledger",
    "LedgerError",
    "MeanResponseAnnotator",
    "NoiseSource",
    "OneOf",
    "PrivacyAccount",
    "RandomizedResponse",
    "Relation",
    "Release",
    "Repeated",
    "ReproducibleNoise",
    "ResponseAnnotator",
    "RevealedGaussian",
    "SampledDiscreteGaussian",
    "SampledGaussian",
    "SystemNoise",
    "Training",
    "Unbounded",
    "Unit",
    "VoteAnnotator",
    "calibrate_count",
    "calibrate_noise",
    "compose",
    "gaussian_epsilon",
    "published_dgd_epsilon",
    "published_dpdfd_epsilon",
]
