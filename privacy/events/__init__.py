"""What one access to private data costs, as frozen values that can be counted, stored and composed."""

from privacy.events.base import Release, release_from_dict, release_kinds
from privacy.events.discrete import DiscreteGaussian, SampledDiscreteGaussian
from privacy.events.gaussian import Gaussian
from privacy.events.label_only import LabelOnly
from privacy.events.laplace import LaplaceVector
from privacy.events.one_of import OneOf
from privacy.events.randomized_response import RandomizedResponse
from privacy.events.repeated import Repeated
from privacy.events.sampled import RevealedGaussian, SampledGaussian
from privacy.events.unbounded import Unbounded
from privacy.events.votes import DiscreteLaplaceVotes, GaussianVotes, LaplaceVotes, ThresholdCheck

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplaceVotes",
    "Gaussian",
    "GaussianVotes",
    "LabelOnly",
    "LaplaceVector",
    "LaplaceVotes",
    "OneOf",
    "RandomizedResponse",
    "Release",
    "Repeated",
    "RevealedGaussian",
    "SampledDiscreteGaussian",
    "SampledGaussian",
    "ThresholdCheck",
    "Unbounded",
    "release_from_dict",
    "release_kinds",
]
