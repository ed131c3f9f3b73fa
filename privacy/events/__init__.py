"""The cost of one access to private data, as frozen values that can be counted, stored and composed."""

from privacy.events.base import Release, release_from_dict
from privacy.events.compound import OneOf, Repeated
from privacy.events.discrete import DiscreteGaussian, SampledDiscreteGaussian
from privacy.events.gaussian import Gaussian
from privacy.events.laplace import LaplaceVotes
from privacy.events.randomized_response import RandomizedResponse
from privacy.events.sampled import RevealedGaussian, SampledGaussian
from privacy.events.unbounded import LabelOnly, Unbounded

__all__ = [
    "DiscreteGaussian",
    "Gaussian",
    "LabelOnly",
    "LaplaceVotes",
    "OneOf",
    "RandomizedResponse",
    "Release",
    "Repeated",
    "RevealedGaussian",
    "SampledDiscreteGaussian",
    "SampledGaussian",
    "Unbounded",
    "release_from_dict",
]
