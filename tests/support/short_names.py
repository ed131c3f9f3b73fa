"""Settings of methods by short names, such as `images="prior"`, which many tests give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["SHORT", "grouped"]

_IMAGES = {"images": "images.source", "prior": "images.prior", "generator": "images.generator"}
_WARM = {"generator_warm_start": "images.warm_start_steps"}
_OPTIMIZERS = {
    "student_optimizer": "optimizers.student",
    "student_lr_scheduler": "optimizers.student_lr_scheduler",
    "generator_optimizer": "optimizers.generator",
}
_TARGETS = {
    "gamma": "gradient_targets.gamma",
    "student_follows": "gradient_targets.student_target",
    "dkd_alpha": "gradient_targets.dkd_alpha",
    "dkd_beta": "gradient_targets.dkd_beta",
}
_TERMS = {
    name: f"generator_loss.{name}"
    for name in ("one_hot_weight", "balance_weight", "activation_weight", "activation_norm", "student_loss_weight")
}
_TANGENT_NORMAL = {
    name: f"tangent_normal.{name}"
    for name in (
        "tangent_weight",
        "normal_weight",
        "entropy_weight",
        "entropy_term",
        "tangent_length",
        "normal_length",
        "directions",
    )
}

SHORT: Mapping[str, Mapping[str, str]] = {
    "DPDFD": {**_IMAGES, **_WARM, **_OPTIMIZERS, **_TARGETS, **_TERMS},
    "DPSD": {
        **_IMAGES,
        **_WARM,
        **_OPTIMIZERS,
        **_TARGETS,
        **_TERMS,
        "distillation": "gradient_targets.loss",
        "schedule": "label_targets.schedule",
        "noise_correction": "label_targets.noise_correction",
    },
    "LabelDP": {
        **_IMAGES,
        **_WARM,
        **_OPTIMIZERS,
        **{name: f"stages.{name}" for name in ("threshold", "noise_correction", "train_on")},
        **{
            name: f"generator_training.{name}"
            for name in (
                "discriminator",
                "pretraining_steps",
                "one_hot_weight",
                "balance_weight",
                "statistics_weight",
                "student_loss_weight",
            )
        },
    },
    "DGD": {
        **_IMAGES,
        **_OPTIMIZERS,
        **_TANGENT_NORMAL,
        "pool": "images.pool",
        "pool_part": "images.pool_part",
        "generator_lr_scheduler": "optimizers.generator_lr_scheduler",
        "baseline": "generator_phase.baseline",
        "baseline_network": "generator_phase.baseline_network",
        "generator_steps": "generator_phase.steps",
        "one_hot_weight": "generator_phase.one_hot_weight",
        "balance_weight": "generator_phase.balance_weight",
        "activation_weight": "generator_phase.activation_weight",
        "statistics_weight": "generator_phase.statistics_weight",
        "vae": "vae_phase.network",
        "vae_steps": "vae_phase.steps",
        "vae_optimizer": "vae_phase.optimizer",
        "queries": "query_phase.queries",
        "query_selection": "query_phase.selection",
        "query_candidates": "query_phase.candidates",
        **{
            name: f"student_phase.{name}"
            for name in ("pseudo_label_weight", "pseudo_label_threshold", "distortion", "query_distortion")
        },
    },
    "Distillation": {
        "student_optimizer": "optimizers.student",
        "student_lr_scheduler": "optimizers.student_lr_scheduler",
    },
}
"""For each class, from a short name to the setting in its group."""


def grouped(kind: str | type, **settings: Any) -> dict[str, Any]:
    """Settings of a method by short names, in the groups that its constructor takes.

    A subclass in `support` is named `<what it does><method>`.
    """
    name = kind if isinstance(kind, str) else kind.__name__
    method = next((known for known in SHORT if name.rsplit(".", 1)[-1].endswith(known)), name)
    found: dict[str, Any] = {}
    for name, value in settings.items():
        long = SHORT.get(method, {}).get(name)
        if long is None or (name == "images" and isinstance(value, Mapping)):
            found[name] = {**found.get(name, {}), **value} if isinstance(value, Mapping) else value
            continue
        group, _, field = long.partition(".")
        found[group] = {**found.get(group, {}), field: value}
    return found
