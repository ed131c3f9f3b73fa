"""Old names that keep working for one release, each with a warning that names the new one."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["alias_modules"]


def alias_modules(moved: Mapping[str, str | Sequence[str]]) -> None:
    """Lets modules be imported, and classes be named by `class_path`, where they were before a move.

    Args:
        moved: From the old dotted name to the new one, or to several where a module was split: a name is looked up in
            each of them, in that order.
    """
    sys.meta_path.append(_Finder({old: (new,) if isinstance(new, str) else tuple(new) for old, new in moved.items()}))


class _Finder(MetaPathFinder, Loader):
    """Stands last: whatever really exists is found before."""

    def __init__(self, moved: Mapping[str, tuple[str, ...]]) -> None:
        self.moved = moved

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self.moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Moved(spec.name, self.moved[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is there to run: see `_Moved`."""


class _Moved(ModuleType):
    """A module of the old name, whose attributes are those of the new ones."""

    def __init__(self, name: str, homes: tuple[str, ...]) -> None:
        super().__init__(name, f"Moved to {', '.join(homes)}.")
        self.__path__: list[str] = []  # its submodules moved too
        self._homes = homes
        warnings.warn(f"{name} has moved to {' and '.join(homes)}", FutureWarning, stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for home in self.__dict__["_homes"]:
                try:
                    return getattr(importlib.import_module(home), name)
                except AttributeError:
                    continue
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
