"""What becomes of settings when several configurations name different classes: it is said, or refused.

jsonargparse 4.53 keeps settings that both classes take, drops the others, and says neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader
from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.cli.resuming import flat

_MODEL = ("model", "model.mechanism", "model.budget")
"""Whose settings are never dropped: they decide what a run costs."""

_load = get_loader("yaml")
"""As the parser reads numbers: to PyYAML 1e-6 is a text."""

_GROUPS = {"model.teacher": "path", "model.student": "network", "model.images": "source"}
"""Groups of settings, and the one of each that is most often meant by a text."""


def refuse_texts(sources: Iterable[Mapping[str, Any]]) -> None:
    """Refuses a text for a group of settings, which jsonargparse would read as the name of a settings file.

    Raises:
        ValueError: There is one; the message names the setting.
    """
    for given in sources:
        for name, field in _GROUPS.items():
            if isinstance(value := given.get(name), str) and not value.endswith((".yaml", ".yml", ".json")):
                raise ValueError(f"{name} is a group of settings: give {name}.{field}, got {value!r}")


def say_changes(sources: Iterable[Mapping[str, Any]], parsed: Mapping[str, Any]) -> None:
    """States which given settings a later class keeps, and which it does not take.

    Args:
        sources: What was given, see `given_in`.
        parsed: The configuration that was parsed from it.

    Raises:
        ValueError: Settings of a model, a mechanism or a budget would be lost.
    """
    final, before = flat(parsed), dict[str, Any]()
    for given in sources:
        for name in [name for name in given if name in before and _class(given[name]) != _class(before[name])]:
            own = [one for one in before if one.startswith(f"{name}.") and one not in given]
            kept = [one for one in own if one in final and final[one] == before[one]]
            lost = [one for one in own if one not in final]
            parts = [
                f", {how} its {', '.join(one.removeprefix(f'{name}.') for one in names)}"
                for how, names in (("with", kept), ("without", lost))
                if names
            ]
            if parts:
                text = f"{_class(given[name])} instead of {_class(before[name])}{''.join(parts)}"
                if lost and name in _MODEL:
                    raise ValueError(f"{text}: write a configuration for {_class(given[name])} alone")
                rank_zero_info(f"{text}.")
            for one in lost:
                del before[one]
        before |= given
    if lost := [one for one in before if one not in final and one.startswith(tuple(f"{name}." for name in _MODEL[1:]))]:
        raise ValueError(f"{', '.join(lost)} would be lost beside settings of another class: leave out one of them")


def given_in(args: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Settings of each configuration and option of a command line, in their order, by dotted names."""
    left = list(args)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if not option.startswith("-"):
            continue
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("--") else ""
        if option in ("--config", "-c"):
            try:
                content = _load(value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError):
                content = None  # which the parser refuses
            yield flat(content) if isinstance(content, Mapping) else {}
            continue
        name = option.lstrip("-").replace(".init_args", "").removesuffix(".class_path")
        try:
            yield flat({name: _load(value)})
        except yaml.YAMLError:
            yield {name: value}


def _class(value: Any) -> Any:
    return value.rpartition(".")[2] if isinstance(value, str) else value
