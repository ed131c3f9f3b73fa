"""Privacy accounting: exact where exact is known, published where a paper claims it. Knows nothing of Lightning."""

from __future__ import annotations

from privacy.claims import Claim, NoisyVotes, RdpSlope, WholeRun, claim_from_dict, published_epsilon
from privacy.composition import Reading, compose
from privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from privacy.published import (
    dpdfd_rdp_slope,
    published_dgd_epsilon,
    published_dpdfd_epsilon,
    published_dpsd_data_epsilon,
    published_dpsd_label_epsilon,
    published_labeldp_epsilon,
)
from privacy.rdp import rdp_epsilon, rdp_slope_epsilon
from privacy.releases import Gaussian, Release, Unbounded, release_from_dict

__all__ = [
    "Claim",
    "Gaussian",
    "NoisyVotes",
    "RdpSlope",
    "Reading",
    "Release",
    "Unbounded",
    "WholeRun",
    "claim_from_dict",
    "compose",
    "dpdfd_rdp_slope",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "published_dgd_epsilon",
    "published_dpdfd_epsilon",
    "published_dpsd_data_epsilon",
    "published_dpsd_label_epsilon",
    "published_epsilon",
    "published_labeldp_epsilon",
    "rdp_epsilon",
    "rdp_slope_epsilon",
    "release_from_dict",
]
