"""Privacy accounting: exact where exact is known, published where a paper claims it. Knows nothing of Lightning."""

from __future__ import annotations

from privacy.account import Accounting, BudgetExceeded, PrivacyAccount, Scope
from privacy.accounting.calibration import (
    Calibration,
    calibrate_candidates,
    calibrate_count,
    calibrate_dpdfd_noise,
    calibrate_dpdfd_steps,
    calibrate_noise,
    calibrate_queries,
    calibrate_responses,
    max_count,
)
from privacy.accounting.composition import (
    EpsilonBound,
    compose,
    compose_delta,
    confident_votes_epsilon,
    gaussian_votes_epsilon,
    laplace_votes_epsilon,
    randomized_response_epsilon,
    rdp_compose,
)
from privacy.accounting.selection import (
    SelectionCost,
    TruncatedNegativeBinomial,
    all_candidates,
    draw_candidates,
    selection_epsilon,
)
from privacy.annotators import Annotator, DirectGradientAnnotator, DirectLabelAnnotator, GradientAnnotator
from privacy.annotators.label import LabelAnnotator
from privacy.annotators.mean_response import MeanAnswerAnnotator as MeanAnswerAnnotator  # their old names, which warn
from privacy.annotators.mean_response import MeanResponseAnnotator
from privacy.annotators.response import AnswerAnnotator as AnswerAnnotator
from privacy.annotators.response import ResponseAnnotator
from privacy.annotators.votes import VoteAnnotator, VoteMechanism
from privacy.auditing import (
    AuditResult,
    audit,
    audit_one_run,
    clopper_pearson_epsilon,
    clopper_pearson_interval,
    gaussian_audit_epsilon,
    gaussian_audit_mu,
    gaussian_score,
    laplace_score,
    learnt_score,
    one_run_epsilon,
    one_run_p_value,
    rounds,
    table_score,
)
from privacy.auditing.verification import (
    Verdict,
    dpsd_eq5_table,
    randomized_response_table,
    verify_claim,
    worst_case_delta,
    worst_case_epsilon,
)
from privacy.deprecation import alias_modules, renamed_names
from privacy.events import (
    DiscreteLaplaceVotes,
    Gaussian,
    GaussianVotes,
    LabelOnly,
    LaplaceVector,
    LaplaceVotes,
    OneOf,
    RandomizedResponse,
    Release,
    Repeated,
    RevealedGaussian,
    SampledGaussian,
    ThresholdCheck,
    Unbounded,
    release_from_dict,
    release_kinds,
)
from privacy.events.discrete import DiscreteGaussian, SampledDiscreteGaussian
from privacy.formatting import round_up
from privacy.guarantee import Guarantee, LabelStatement
from privacy.identity import Training, ledger_file, new_training_id
from privacy.ledger import Charge, Ledger, LedgerError
from privacy.mechanisms import clip_per_sample, keep_largest, normalize_per_sample, zero_non_finite_samples
from privacy.mechanisms.description import MechanismDescription
from privacy.mechanisms.discrete_gaussian import release_on_lattice, round_to_lattice, sum_on_lattice
from privacy.mechanisms.gradient_bounding import GRADIENT_BOUNDINGS, GradientBounding, gradient_bounding
from privacy.mechanisms.gradients import GRADIENT_MECHANISMS, GradientMechanism, gradient_mechanism, output_gradient_mu
from privacy.mechanisms.latents import laplace_latents
from privacy.mechanisms.noise import NoiseSource, ReproducibleNoise, SystemNoise
from privacy.mechanisms.randomized_response import randomized_response, threshold_candidates, top_k_candidates
from privacy.mechanisms.vote_counts import REJECTED, VoteNoise, confident_votes, noisy_votes, vote_counts
from privacy.moved import MOVED
from privacy.neighbours import IncompatibleNeighbours, Relation, Unit, common_neighbours
from privacy.numerics.data_dependent import gnmax_data_dependent_rdp
from privacy.numerics.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from privacy.numerics.rdp import rdp_epsilon, rdp_slope_epsilon
from privacy.published import (
    dpdfd_rdp_slope,
    published_dgd_epsilon,
    published_dpdfd_epsilon,
    published_dpsd_data_epsilon,
    published_dpsd_label_epsilon,
    published_labeldp_epsilon,
)
from privacy.published.claims import Claim, NoisyVotesClaim, RdpSlope, WholeRun, claim_from_dict, published_epsilon

alias_modules(MOVED)

__getattr__ = renamed_names(
    __name__,
    {
        "NoisyVotes": "NoisyVotesClaim",
        "Reading": "EpsilonBound",
        "Words": "MechanismDescription",
        "calibrate_answers": "calibrate_responses",
        "clip_rows": "clip_per_sample",
        "normalize_rows": "normalize_per_sample",
        "zero_non_finite_rows": "zero_non_finite_samples",
    },
)

__all__ = [
    "GRADIENT_BOUNDINGS",
    "GRADIENT_MECHANISMS",
    "REJECTED",
    "Accounting",
    "Annotator",
    "AuditResult",
    "BudgetExceeded",
    "Calibration",
    "Charge",
    "Claim",
    "DirectGradientAnnotator",
    "DirectLabelAnnotator",
    "DiscreteGaussian",
    "DiscreteLaplaceVotes",
    "EpsilonBound",
    "Gaussian",
    "GaussianVotes",
    "GradientAnnotator",
    "GradientBounding",
    "GradientMechanism",
    "Guarantee",
    "IncompatibleNeighbours",
    "LabelAnnotator",
    "LabelOnly",
    "LabelStatement",
    "LaplaceVector",
    "LaplaceVotes",
    "Ledger",
    "LedgerError",
    "MeanResponseAnnotator",
    "MechanismDescription",
    "NoiseSource",
    "NoisyVotesClaim",
    "OneOf",
    "PrivacyAccount",
    "RandomizedResponse",
    "RdpSlope",
    "Relation",
    "Release",
    "Repeated",
    "ReproducibleNoise",
    "ResponseAnnotator",
    "RevealedGaussian",
    "SampledDiscreteGaussian",
    "SampledGaussian",
    "Scope",
    "SelectionCost",
    "SystemNoise",
    "ThresholdCheck",
    "Training",
    "TruncatedNegativeBinomial",
    "Unbounded",
    "Unit",
    "Verdict",
    "VoteAnnotator",
    "VoteMechanism",
    "VoteNoise",
    "WholeRun",
    "all_candidates",
    "audit",
    "audit_one_run",
    "calibrate_candidates",
    "calibrate_count",
    "calibrate_dpdfd_noise",
    "calibrate_dpdfd_steps",
    "calibrate_noise",
    "calibrate_queries",
    "calibrate_responses",
    "claim_from_dict",
    "clip_per_sample",
    "clopper_pearson_epsilon",
    "clopper_pearson_interval",
    "common_neighbours",
    "compose",
    "compose_delta",
    "confident_votes",
    "confident_votes_epsilon",
    "dpdfd_rdp_slope",
    "dpsd_eq5_table",
    "draw_candidates",
    "gaussian_audit_epsilon",
    "gaussian_audit_mu",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_score",
    "gaussian_votes_epsilon",
    "gnmax_data_dependent_rdp",
    "gradient_bounding",
    "gradient_mechanism",
    "keep_largest",
    "laplace_latents",
    "laplace_score",
    "laplace_votes_epsilon",
    "learnt_score",
    "ledger_file",
    "max_count",
    "new_training_id",
    "noisy_votes",
    "normalize_per_sample",
    "one_run_epsilon",
    "one_run_p_value",
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
    "release_on_lattice",
    "round_to_lattice",
    "round_up",
    "rounds",
    "selection_epsilon",
    "sum_on_lattice",
    "table_score",
    "threshold_candidates",
    "top_k_candidates",
    "verify_claim",
    "vote_counts",
    "worst_case_delta",
    "worst_case_epsilon",
    "zero_non_finite_samples",
]
