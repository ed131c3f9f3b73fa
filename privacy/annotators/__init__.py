"""Annotators: the only way in which anything about a private teacher leaves it."""

from privacy.annotators.answer import AnswerAnnotator
from privacy.annotators.base import DISJOINT_SHARDS, Annotator, uncompiled
from privacy.annotators.gradient import GradientAnnotator, GradientReleases
from privacy.annotators.label import LabelAnnotator
from privacy.annotators.mean_answer import MeanAnswerAnnotator
from privacy.annotators.votes import VoteAnnotator, VoteMechanism

__all__ = [
    "DISJOINT_SHARDS",
    "Annotator",
    "AnswerAnnotator",
    "GradientAnnotator",
    "GradientReleases",
    "LabelAnnotator",
    "MeanAnswerAnnotator",
    "VoteAnnotator",
    "VoteMechanism",
    "uncompiled",
]
