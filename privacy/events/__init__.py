"""The cost of one access to private data, as frozen values that can be counted, stored and composed."""

from privacy.events.base import (
    LabelOnly as LabelOnly,
    Release as Release,
    Unbounded as Unbounded,
    release_from_dict as release_from_dict,
)
from privacy.events.compound import OneOf as OneOf, Repeated as Repeated
from privacy.events.gaussian import (
    Gaussian as Gaussian,
    RevealedGaussian as RevealedGaussian,
    SampledGaussian as SampledGaussian,
)
from privacy.events.labels import LaplaceVotes as LaplaceVotes, RandomizedResponse as RandomizedResponse
