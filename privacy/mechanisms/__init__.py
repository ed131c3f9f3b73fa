"""Mechanisms: how much a record can move, how noise is drawn, and what both are charged as."""

from privacy.mechanisms.base import Description, Mechanism, Shape
from privacy.mechanisms.direct import DirectGradients, DirectLabels
from privacy.mechanisms.noisy_gradients import NoisyGradients
from privacy.mechanisms.noisy_labels import NoisyLabels
from privacy.mechanisms.noisy_votes import NoisyVotes
from privacy.mechanisms.responses import NoisyMeanResponse, RawResponses

__all__ = [
    "Description",
    "DirectGradients",
    "DirectLabels",
    "Mechanism",
    "NoisyGradients",
    "NoisyLabels",
    "NoisyMeanResponse",
    "NoisyVotes",
    "RawResponses",
    "Shape",
]
