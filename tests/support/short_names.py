"""Settings of methods by short names, such as `images="prior"`, which many tests give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lightning_modules.images import Images
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from privacy import Budget

__all__ = ["SHORT", "budgeted", "grouped"]


def _of(group: str, names: str) -> dict[str, str]:
    """Short names of a group's settings, as `short=long` where they differ."""
    pairs = [name.split("=") for name in names.split()]
    return {pair[0]: f"{group}.{pair[-1]}" for pair in pairs}


_IMAGES = _of("images", "images=source prior generator")
_STUDENT = _of(
    "student",
    "student=network student_balance=balance replay student_lr_scheduler=lr_scheduler",
)
_TEACHER = _of(
    "teacher",
    "teacher=path teacher_network=network private_data teacher_input=input teacher_outputs=outputs teacher_trial=trial",
)
_GROUPS = {**_IMAGES, **_STUDENT, **_TEACHER}
_TARGETS = _of("gradient_targets", "gamma student_follows=student_target dkd_beta")
_TERMS = _of("generator_loss", "one_hot_weight balance_weight activation_weight activation_norm student_loss_weight")

SHORT: Mapping[str, Mapping[str, str]] = {
    "DPDFD": {**_GROUPS, **_TARGETS, **_TERMS},
    "DPSD": {
        **{**_GROUPS, **_TARGETS, **_TERMS},
        **_of("label_targets", "schedule noise_correction"),
    },
    "LabelDP": {
        **_GROUPS,
        **_of("stages", "threshold noise_correction train_on"),
        **_of(
            "generator_training",
            "discriminator pretraining_steps one_hot_weight balance_weight statistics_weight",
        ),
    },
    "DGD": {
        **_GROUPS,
        **_of(
            "tangent_normal",
            "tangent_weight normal_weight entropy_term",
        ),
        **_of("images", "pool pool_part"),
        **_of(
            "generator_phase",
            "baseline generator_steps=steps one_hot_weight balance_weight activation_weight",
        ),
        **_of("vae_phase", "vae=network vae_steps=steps"),
        **_of("query_phase", "queries query_selection=selection"),
        **_of("student_phase", "query_distortion"),
    },
    "FedDPSD": {
        **{**_IMAGES, **_STUDENT, **_TARGETS, **_TERMS},
        **_of("federation", "federation=name unit num_records min_clients"),
    },
    "FedDistillation": _GROUPS,
    "Distillation": {**_STUDENT, **_TEACHER},
}
"""For each class, from a short name to the setting in its group."""


def _is_group(value: Any) -> bool:
    """Whether a value is of the group itself, and not of the field that the short name stands for."""
    return isinstance(value, Mapping) and not {"class_path", "name"} & value.keys()


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
        if field == "baseline" and value not in (None, "student") and not isinstance(value, Mapping | TeacherConfig):
            value = {"path": value}
        found[group] = {**found.get(group, {}), field: value}
    return budgeted(found)


def budgeted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method, those of its budget that stand among the mechanism's in a group of their own."""
    given = settings.get("mechanism")
    if not isinstance(given, Mapping):
        return dict(settings)
    own = given.get("init_args", given)
    names = {field.name for field in fields(Budget)}
    mechanism = {name: value for name, value in own.items() if name not in names}
    budget = {name: value for name, value in own.items() if name in names}
    whole = {**given, "init_args": mechanism} if "init_args" in given else mechanism
    merged = {"budget": {**settings.get("budget", {}), **budget}} if budget else {}
    return {**settings, "mechanism": whole, **merged}
