"""Annotators, the only access to a private teacher."""

from privacy.annotators.base import Annotator
from privacy.annotators.direct import DirectGradientAnnotator, DirectLabelAnnotator
from privacy.annotators.gradient import GradientAnnotator, GradientReleases
from privacy.annotators.label import LabelAnnotator
from privacy.annotators.mean_response import MeanResponseAnnotator
from privacy.annotators.response import ResponseAnnotator
from privacy.annotators.votes import VoteAnnotator

__all__ = [
    "Annotator",
    "DirectGradientAnnotator",
    "DirectLabelAnnotator",
    "GradientAnnotator",
    "GradientReleases",
    "LabelAnnotator",
    "MeanResponseAnnotator",
    "ResponseAnnotator",
    "VoteAnnotator",
]
