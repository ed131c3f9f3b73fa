"""Which settings a class offers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from lightning_modules.training.hyperparameters import _taken
from privacy.mechanisms.base import Mechanism

#: What the data give.
OF_DATA = ("num_classes", "image_shape", "batch_size")


def offered(kind: Any, above: str = "", *, mechanisms: bool = True) -> Iterator[str]:
    """Names of the settings that a class offers, those of its groups and its mechanisms as well.

    Those of a mechanism are named `mechanism.NoisyGradients.norm_bound`, or `mechanism.norm_bound` without
    `mechanisms`, as a configuration has them.
    """
    hints: dict[str, Any] = {}
    for one in [one for one in reversed(kind.__mro__[:-1]) if "__init__" in vars(one)]:
        hints |= get_type_hints(one if is_dataclass(one) else vars(one)["__init__"])
    unused = getattr(kind, "unused", ())
    for name in _taken(kind) & hints.keys() - {"shared", *OF_DATA, *unused}:
        parts = [part for part in (hints[name], *get_args(hints[name])) if isinstance(part, type)]
        known = [part for part in parts if issubclass(part, Mechanism)]
        groups = {part: f"{name}.{part.__name__}." if mechanisms else f"{name}." for part in known}
        if name != "baseline":  # which is another teacher
            groups |= {part: f"{name}." for part in parts if is_dataclass(part) and part not in groups}
        found = [one for part, within in groups.items() for one in offered(part, within, mechanisms=mechanisms)]
        yield from (above + one for one in found or [name] if not one.startswith(unused))
