"""Settings of methods by short names, such as `images="prior"`, which many tests give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from support.offered import offered

import lightning_modules
from lightning_modules.images import Images
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.training.hyperparameters import _taken
from privacy import Budget

#: The field that the name of a group stands for where it is not given as a whole.
_CHIEF = {"images": "source", "student": "network", "teacher": "path", "federation": "name", "vae_phase": "network"}


@cache
def _long_names(method: str) -> dict[str, str]:
    """Settings of a method's groups by their own name, and by it after the group's: `replay`, `student_network`."""
    kind = getattr(lightning_modules, method, None)
    found = [one.split(".")[:2] for one in offered(kind, mechanisms=False) if "." in one] if kind else []
    own = _taken(kind) if kind else set()
    short = {field: f"{group}.{field}" for group, field in reversed(found) if field not in own}
    long = {f"{group.removesuffix('_phase')}_{field}": f"{group}.{field}" for group, field in found}
    chief = {
        group.removesuffix("_phase"): f"{group}.{field}" for group, field in _CHIEF.items() if group in dict(found)
    }
    return {**short, **{name: one for name, one in long.items() if name not in own}, **chief}


def grouped(kind: str | type, **settings: Any) -> dict[str, Any]:
    """Settings of a method by short names, in the groups that its constructor takes.

    A subclass in `support` is named `<what it does><method>`.
    """
    name = (kind if isinstance(kind, str) else kind.__name__).rsplit(".", 1)[-1]
    method = max((known for known in lightning_modules.__all__ if name.endswith(known)), key=len, default=name)
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Images | StudentConfig | TeacherConfig):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        long = _long_names(method).get(name)
        # Of the group itself, and not of the field that the short name stands for.
        whole = isinstance(value, Mapping) and not {"class_path", "name"} & value.keys()
        if long is None or (whole and name == long.partition(".")[0]):
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
