"""The cost of one access to private data, as frozen values that can be counted, stored and composed."""

from privacy.events.base import LabelOnly, Release, Unbounded, release_from_dict
from privacy.events.compound import OneOf, Repeated
from privacy.events.gaussian import (
    Gaussian,
    RevealedGaussian,
    SampledGaussian,
)
from privacy.events.labels import LaplaceVotes, RandomizedResponse

__all__ = [
    "Gaussian",
    "LabelOnly",
    "LaplaceVotes",
    "OneOf",
    "RandomizedResponse",
    "Release",
    "Repeated",
    "RevealedGaussian",
    "SampledGaussian",
    "Unbounded",
    "release_from_dict",
]
