"""Mechanisms: how much a record can move, how noise is drawn, and what both are charged as."""

from privacy.mechanisms.base import Description as Description, Mechanism as Mechanism, Shape as Shape
from privacy.mechanisms.direct import DirectGradients as DirectGradients, DirectLabels as DirectLabels
from privacy.mechanisms.noisy_gradients import NoisyGradients as NoisyGradients
from privacy.mechanisms.noisy_labels import NoisyLabels as NoisyLabels
from privacy.mechanisms.noisy_votes import NoisyVotes as NoisyVotes
from privacy.mechanisms.responses import NoisyMeanResponse as NoisyMeanResponse, RawResponses as RawResponses
