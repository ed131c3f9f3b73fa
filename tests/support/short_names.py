"""Settings of methods by short names, such as `images="prior"`, which many tests give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lightning_modules.images import Images
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from privacy import Budget

__all__ = ["SHORT", "budgeted", "grouped", "nested"]

_IMAGES = {"images": "images.source", "prior": "images.prior", "generator": "images.generator"}
_WARM = {"generator_warm_start": "images.warm_start_steps"}
_STUDENT = {
    "student": "student.network",
    "student_ema": "student.ema",
    "replay": "student.replay",
    "student_optimizer": "student.optimizer",
    "student_lr_scheduler": "student.lr_scheduler",
}
_TEACHER = {
    "teacher": "teacher.path",
    "teacher_network": "teacher.network",
    "private_data": "teacher.private_data",
    "teacher_input": "teacher.input",
    "teacher_outputs": "teacher.outputs",
    "teacher_checks": "teacher.checks",
}
_GENERATOR = {
    "generator_optimizer": "images.optimizer",
    "generator_lr_scheduler": "images.lr_scheduler",
    "generator_steps": "images.generator_steps",
}
_GROUPS = {**_STUDENT, **_TEACHER, **_GENERATOR}
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
    "DPDFD": {**_IMAGES, **_WARM, **_GROUPS, **_TARGETS, **_TERMS},
    "DPSD": {
        **_IMAGES,
        **_WARM,
        **_GROUPS,
        **_TARGETS,
        **_TERMS,
        "distillation": "gradient_targets.loss",
        "schedule": "label_targets.schedule",
        "noise_correction": "label_targets.noise_correction",
    },
    "LabelDP": {
        **_IMAGES,
        **_WARM,
        **_GROUPS,
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
        **_GROUPS,
        **_TANGENT_NORMAL,
        "pool": "images.pool",
        "pool_part": "images.pool_part",
        "baseline": "generator_phase.baseline",
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
    "FedDPSD": {
        **_IMAGES,
        **_STUDENT,
        **_GENERATOR,
        **_TARGETS,
        **_TERMS,
        **{name: f"federation.{name}" for name in ("unit", "num_records", "min_clients")},
    },
    "FedDistillation": {**_IMAGES, **_GROUPS},
    "Distillation": {**_STUDENT, **_TEACHER},
}
"""For each class, from a short name to the setting in its group."""


_SHORTEST = {"federation": "name"}


def _is_group(value: Any) -> bool:
    """Whether a value is of the group itself, and not of the field that the short name stands for."""
    return isinstance(value, Mapping) and "class_path" not in value


def grouped(kind: str | type, **settings: Any) -> dict[str, Any]:
    """Settings of a method by short names, in the groups that its constructor takes.

    A subclass in `support` is named `<what it does><method>`.
    """
    name = kind if isinstance(kind, str) else kind.__name__
    method = max((known for known in SHORT if name.rsplit(".", 1)[-1].endswith(known)), key=len, default=name)
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Images | StudentConfig | TeacherConfig):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        long = SHORT.get(method, {}).get(name)
        if long is None or (name == long.partition(".")[0] and _is_group(value)):
            found[name] = {**found.get(name, {}), **value} if isinstance(value, Mapping) else value
            continue
        group, _, field = long.partition(".")
        inner = found.get(group, {})
        found[group] = {**(inner if isinstance(inner, Mapping) else {_SHORTEST[group]: inner}), field: value}
    annotator = found.get("annotator")
    if isinstance(annotator, Mapping) and "init_args" in annotator:
        found["annotator"] = {**annotator, "init_args": nested(annotator["init_args"])}
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an annotator by short names, those of its budget in their group, for a configuration."""
    own = {name: settings[name] for name in settings if name in {field.name for field in fields(Budget)}}
    return {**{name: settings[name] for name in settings if name not in own}, **({"budget": own} if own else {})}


def budgeted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same for its constructor."""
    found = nested(settings)
    return {**found, "budget": Budget(**found["budget"])} if "budget" in found else found
