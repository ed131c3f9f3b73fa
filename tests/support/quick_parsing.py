"""What jsonargparse makes of a class's settings is remembered, which takes most of the time of a tiny fit.

It parses the settings of each class some twenty times, and those of the classes in them each time anew. Commands that
tests run in processes of their own parse as a user's do.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from jsonargparse import Namespace, _common, _typehints

_WEIGHTS = (".ckpt", ".pt", ".pth")


def remember_parsed_classes() -> None:
    """Replaces `adapt_class_type`, whose result depends on what it is given, some context, and files that are named."""
    adapt, found = _typehints.adapt_class_type, {}

    def quick(value: Any, serialize: bool, instantiate_classes: bool, *args: Any, **given: Any) -> Any:
        before = given.get("prev_val")
        changed = before is not None and _class_of(before) != _class_of(value)
        names = list(_strings(value)) + list(_strings(before))
        key: Any = None
        if not (instantiate_classes or changed or any(map(_is_read, names))):
            key = (repr((value, serialize, args, given)), _context(), _classes(names))
        # Objects that a configuration holds have no words for what is in them.
        if key is None or " object at 0x" in key[0]:
            return adapt(value, serialize, instantiate_classes, *args, **given)
        if key not in found:
            found[key] = _copy(adapt(value, serialize, instantiate_classes, *args, **given))
        return _copy(found[key])

    _typehints.adapt_class_type = quick


def _context() -> str:
    names = ("lenient_check", "parsing_defaults", "validating_defaults", "load_value_mode", "nested_links")
    values = [getattr(_common, name).get() for name in names]
    return repr([*values, _typehints.sub_defaults.get(), _typehints.dump_kwargs.get()])


def _class_of(value: Any) -> Any:
    return value.get("class_path") if isinstance(value, (Namespace, dict)) else value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Namespace, dict)):
        for item in vars(value).values() if isinstance(value, Namespace) else value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _is_read(name: str) -> bool:
    """Whether the parser takes settings from a file of this name."""
    return len(name) < 250 and not name.endswith(_WEIGHTS) and os.path.isfile(name)


def _classes(names: list[str]) -> tuple[Any, ...]:
    """Which classes are meant: two tests may write modules of one name."""
    made = []
    for name in names:
        if "." in name and name.split(".")[0] in sys.modules and name.replace(".", "").isidentifier():
            with contextlib.suppress(Exception):
                made.append(_typehints.import_object(name))
    return tuple(each if isinstance(each, type) else id(each) for each in made)


def _copy(value: Any) -> Any:
    if isinstance(value, Namespace):
        made = Namespace()
        vars(made).update((name, _copy(item)) for name, item in vars(value).items())
        return made
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
