"""Old names that keep working for one release, each with a warning that names the new one."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

__all__ = ["alias_modules", "renamed_arguments", "renamed_attribute", "renamed_class", "renamed_names", "warn_renamed"]

_F = TypeVar("_F", bound=Callable[..., Any])


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


class _RenamedClass(ABCMeta):
    """Type of a class's old name: a call of it warns and makes an object of the current class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        new = cls.__dict__.get("_renamed_to")
        if new is None:  # somebody's subclass of the old name
            return super().__call__(*args, **kwargs)
        warn_renamed(cls.__name__, new.__name__, stacklevel=3)
        return new(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, cls.__dict__["_renamed_to"])
            if "_renamed_to" in cls.__dict__
            else (super().__instancecheck__(instance))
        )


def renamed_class(old: str, new: type[Any]) -> Any:
    """The old name of a class, which a configuration may give by itself: `class_path: OLD` finds subclasses by name.

    Args:
        old: Former name.
        new: The current class, beside which the old name has to stand.

    Returns:
        A subclass that makes objects of `new` itself, with a warning; `isinstance` takes them for its own.
    """
    content = {"__module__": new.__module__, "__doc__": f"Old name of `{new.__name__}`.", "_renamed_to": new}
    return _RenamedClass(old, (new,), content)


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, by which functions and classes are found under their old names too.

    Args:
        module: `__name__` of the module.
        names: From the old name to the new one, which stands in the same module.
    """

    def look_up(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name], stacklevel=3)
        return getattr(sys.modules[module], names[name])

    return look_up


class renamed_attribute:  # noqa: N801  (written as a descriptor, used like a function)
    """The old name of a method or an attribute.

    Args:
        new: Current name.
    """

    def __init__(self, new: str) -> None:
        self.new = new
        self.__doc__ = f"Old name of `{new}`."

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.old = f"{owner.__name__}.{name}"

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        warn_renamed(self.old, self.new, stacklevel=3)
        return getattr(owner if instance is None else instance, self.new)

    def __set__(self, instance: Any, value: Any) -> None:
        warn_renamed(self.old, self.new, stacklevel=3)
        setattr(instance, self.new, value)


def renamed_arguments(**names: str) -> Callable[[_F], _F]:
    """Lets a function be called with former keyword arguments.

    Args:
        names: From the old name to the new one.

    Raises:
        TypeError: When called, if both are given.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{function.__qualname__} takes {new} or its old name {old}, got both")
                    warn_renamed(f"{function.__qualname__}({old}=...)", f"{new}=...", stacklevel=3)
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast("_F", call)

    return decorate


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warns that a name is a former one.

    Args:
        old: The former name.
        new: The current one.
        stacklevel: Of `warnings.warn`, counted from here.
    """
    message = f"{old} is called {new} now; the old name goes with the next release"
    warnings.warn(message, FutureWarning, stacklevel=stacklevel)
