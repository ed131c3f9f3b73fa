"""Privacy accounting: exact where exact is known, published where a paper claims it. Knows nothing of Lightning."""

from __future__ import annotations

from privacy.account import Accounting, BudgetExceeded, PrivacyAccount, Scope
from privacy.annotators import Annotator, GradientAnnotator
from privacy.auditing import (
    clopper_pearson_epsilon,
    clopper_pearson_interval,
    gaussian_audit_epsilon,
    gaussian_audit_mu,
)
from privacy.calibration import (
    Calibration,
    calibrate_answers,
    calibrate_candidates,
    calibrate_count,
    calibrate_dpdfd_noise,
    calibrate_dpdfd_steps,
    calibrate_noise,
    calibrate_queries,
    max_count,
    output_gradient_mu,
)
from privacy.claims import Claim, NoisyVotes, RdpSlope, WholeRun, claim_from_dict, published_epsilon
from privacy.composition import (
    Reading,
    compose,
    compose_delta,
    confident_votes_epsilon,
    gaussian_votes_epsilon,
    laplace_votes_epsilon,
    randomized_response_epsilon,
    rdp_compose,
)
from privacy.data_dependent import gnmax_data_dependent_rdp
from privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from privacy.guarantees import Guarantee
from privacy.latents import laplace_latents
from privacy.ledger import Charge, Ledger, LedgerError
from privacy.mechanisms import clip_rows, normalize_rows, zero_non_finite_rows
from privacy.noise import NoiseSource, ReproducibleNoise, SystemNoise
from privacy.published import (
    dpdfd_rdp_slope,
    published_dgd_epsilon,
    published_dpdfd_epsilon,
    published_dpsd_data_epsilon,
    published_dpsd_label_epsilon,
    published_labeldp_epsilon,
)
from privacy.rdp import rdp_epsilon, rdp_slope_epsilon
from privacy.releases import (
    DiscreteLaplaceVotes,
    Gaussian,
    GaussianVotes,
    LaplaceVector,
    LaplaceVotes,
    RandomizedResponse,
    Release,
    RevealedGaussian,
    SampledGaussian,
    ThresholdCheck,
    Unbounded,
    release_from_dict,
    release_kinds,
)
from privacy.response import randomized_response, threshold_candidates, top_k_candidates
from privacy.verification import (
    Verdict,
    dpsd_eq5_table,
    randomized_response_table,
    verify_claim,
    worst_case_delta,
    worst_case_epsilon,
)
from privacy.votes import REJECTED, VoteNoise, confident_votes, noisy_votes, vote_counts

__all__ = [
    "REJECTED",
    "Accounting",
    "Annotator",
    "BudgetExceeded",
    "Calibration",
    "Charge",
    "Claim",
    "DiscreteLaplaceVotes",
    "Gaussian",
    "GaussianVotes",
    "GradientAnnotator",
    "Guarantee",
    "LaplaceVector",
    "LaplaceVotes",
    "Ledger",
    "LedgerError",
    "NoiseSource",
    "NoisyVotes",
    "PrivacyAccount",
    "RandomizedResponse",
    "RdpSlope",
    "Reading",
    "Release",
    "ReproducibleNoise",
    "RevealedGaussian",
    "SampledGaussian",
    "Scope",
    "SystemNoise",
    "ThresholdCheck",
    "Unbounded",
    "Verdict",
    "VoteNoise",
    "WholeRun",
    "calibrate_answers",
    "calibrate_candidates",
    "calibrate_count",
    "calibrate_dpdfd_noise",
    "calibrate_dpdfd_steps",
    "calibrate_noise",
    "calibrate_queries",
    "claim_from_dict",
    "clip_rows",
    "clopper_pearson_epsilon",
    "clopper_pearson_interval",
    "compose",
    "compose_delta",
    "confident_votes",
    "confident_votes_epsilon",
    "dpdfd_rdp_slope",
    "dpsd_eq5_table",
    "gaussian_audit_epsilon",
    "gaussian_audit_mu",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_votes_epsilon",
    "gnmax_data_dependent_rdp",
    "laplace_latents",
    "laplace_votes_epsilon",
    "max_count",
    "noisy_votes",
    "normalize_rows",
    "output_gradient_mu",
    "published_dgd_epsilon",
    "published_dpdfd_epsilon",
    "published_dpsd_data_epsilon",
    "published_dpsd_label_epsilon",
    "published_epsilon",
    "published_labeldp_epsilon",
    "randomized_response",
    "randomized_response_epsilon",
    "randomized_response_table",
    "rdp_compose",
    "rdp_epsilon",
    "rdp_slope_epsilon",
    "release_from_dict",
    "release_kinds",
    "threshold_candidates",
    "top_k_candidates",
    "verify_claim",
    "vote_counts",
    "worst_case_delta",
    "worst_case_epsilon",
    "zero_non_finite_rows",
]
