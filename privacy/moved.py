"""What this package's modules, classes and settings were called before version 0.2; see `privacy.deprecation`."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["MOVED", "RENAMED_CLASSES", "RENAMED_SETTINGS"]

MOVED: Mapping[str, str | tuple[str, ...]] = {
    "privacy.annotators.answer": "privacy.annotators.response",
    "privacy.annotators.mean_answer": "privacy.annotators.mean_response",
    "privacy.answer_annotator": "privacy.annotators.response",
    "privacy.calibration": "privacy.accounting.calibration",
    "privacy.claims": "privacy.published.claims",
    "privacy.composition": "privacy.accounting.composition",
    "privacy.data_dependent": "privacy.numerics.data_dependent",
    "privacy.discrete_gaussian": "privacy.mechanisms.discrete_gaussian",
    "privacy.discrete_releases": "privacy.events.discrete",
    "privacy.draws": "privacy.mechanisms.draws",
    "privacy.events.response": "privacy.events.randomized_response",
    "privacy.gaussian": "privacy.numerics.gaussian",
    "privacy.gradient_mechanisms": "privacy.mechanisms.gradients",
    "privacy.guarantees": ("privacy.guarantee", "privacy.formatting", "privacy.files"),
    "privacy.label_annotator": "privacy.annotators.label",
    "privacy.latents": "privacy.mechanisms.latents",
    "privacy.matrix": "sweeps.runner.guarantee_tables",
    "privacy.mean_answer_annotator": "privacy.annotators.mean_response",
    "privacy.mechanisms.response": "privacy.mechanisms.randomized_response",
    "privacy.mechanisms.words": "privacy.mechanisms.description",
    "privacy.noise": "privacy.mechanisms.noise",
    "privacy.pipelines": "privacy.accounting.pipelines",
    "privacy.pld": "privacy.numerics.pld",
    "privacy.rdp": "privacy.numerics.rdp",
    "privacy.releases": "privacy.events",
    "privacy.response": "privacy.mechanisms.randomized_response",
    "privacy.selection": "privacy.accounting.selection",
    "privacy.verification": "privacy.auditing.verification",
    "privacy.vote_annotator": "privacy.annotators.votes",
    "privacy.vote_mechanisms": "privacy.mechanisms.votes",
    "privacy.votes": "privacy.mechanisms.vote_counts",
    "privacy.words": "privacy.mechanisms.description",
}

RENAMED_CLASSES: Mapping[str, str] = {
    "AnswerAnnotator": "ResponseAnnotator",
    "MeanAnswerAnnotator": "MeanResponseAnnotator",
}
"""Classes that a checkpoint or a configuration may name by its `class_path`."""

RENAMED_SETTINGS: Mapping[str, str] = {"max_answers": "max_responses"}
"""Settings of annotators that a checkpoint or a configuration may hold among its `init_args`."""
