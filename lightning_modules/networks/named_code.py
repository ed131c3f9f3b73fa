"""What of a description in a file might be imported, and called, when a network is built by it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from lightning_modules.networks.foreign import ForeignNetwork, named_object

__all__ = ["names_of_code", "require_classes"]

#: Text that a parser can take for nothing but itself, or for a class that is known already.
_PLAIN = re.compile(r"[\w+-]*")


def names_of_code(spec: Any) -> Iterator[str]:
    """Class paths, nested ones too, and every text that a parser might read as one or as settings that hold one."""
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            if key == "class_path":
                yield str(value)
            else:
                yield from names_of_code(value)
    elif isinstance(spec, (list, tuple)):
        for value in spec:
            yield from names_of_code(value)
    elif isinstance(spec, str) and not _PLAIN.fullmatch(spec):
        yield spec


def require_classes(spec: Any, *, of: tuple[type, ...]) -> None:
    """Refuses a description by which anything but objects of some classes would be made.

    Classes are imported for that, from wherever they are installed; nothing of them is called.

    Args:
        spec: `class_path` and `init_args`, as a file has them.
        of: Whose subclasses may be named.

    Raises:
        ValueError: It names a function, another class, or `ForeignNetwork`, which calls what it is told to; or a text
            in it holds settings.
    """
    for name in names_of_code(spec):
        if name.rpartition(".")[2] == ForeignNetwork.__name__:
            raise ValueError(f"it names {name}, which calls whatever it is told to")
        if ".py:" in name:  # looking it up would run it
            raise ValueError(f"it names code in a file, {name[:80]!r}")
        if _holds_settings(name):
            raise ValueError(f"it has settings in a text, {name[:80]!r}")
        try:
            found = named_object(name)
        except ValueError:
            continue  # no code, so that a parser finds none either
        if not (inspect.isclass(found) and issubclass(found, of)) and not inspect.ismodule(found):
            raise ValueError(f"it names {name}, which is no class of a network")


def _holds_settings(text: str) -> bool:
    try:
        return isinstance(yaml.safe_load(text), (dict, list))
    except yaml.YAMLError:
        return False
