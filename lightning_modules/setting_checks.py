"""Checks of single settings: each error names the setting, what is allowed and what was given.

Values that a type allows and no run can use, such as `.nan`, are refused before anything is charged.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")


def settings_of(kind: type[_Settings], given: Any, *, name: str) -> _Settings:
    """Make a settings object from one, or from a mapping of its fields, which a script's checkpoint holds.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        return kind(**given)
    raise TypeError(f"{name} must be {kind.__name__}(...), got {given!r}")


def check_choice(name: str, given: Any, allowed: Sequence[str]) -> None:
    """Refuses a word that is not allowed.

    Raises:
        ValueError: It is not allowed.
    """
    if given not in allowed:
        raise ValueError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, got {given!r}")


def check_left_out(names: Iterable[str], groups: Mapping[str, Any], *, by: object) -> None:
    """Refuses settings that a method does not use, such as `student.replay`, of groups of settings by name.

    Raises:
        ValueError: One differs from its default.
    """
    for name in names:
        group, _, field = name.partition(".")
        if field and (given := getattr(groups[group], field)) != getattr(type(groups[group]), field):
            raise ValueError(f"{name} must be left out for {type(by).__name__}, which does not use it: {given}")


def check_whole_number(name: str, given: Any, *, least: int, null: str = "") -> None:
    """Refuses anything but a whole number of at least `least`: fractions, NaN, words and truth values.

    `null` says what None stands for, where it is allowed.

    Raises:
        ValueError: It is not.
    """
    if given is None and null:
        return
    if isinstance(given, bool) or not isinstance(given, Integral) or int(given) < least:
        raise ValueError(f"{name} must be {least} or more and a whole number{_or(null)}, got {given!r}")


def check_number(
    name: str,
    given: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    null: str = "",
) -> None:
    """Refuses what is not a finite number in range; for `null` see `check_whole_number`.

    Raises:
        ValueError: It is not.
    """
    number = isinstance(given, Real) and not isinstance(given, bool)
    if given is None and null:
        return
    if number and math.isfinite(given) and least <= given <= most and above < given < below:
        return
    if below < math.inf:
        allowed = f"{least:g} or more and below {below:g}"
    elif most < math.inf:
        allowed = f"a number between {least:g} and {most:g}"
    elif least > -math.inf:
        allowed = f"{least:g} or more and finite"
    else:
        allowed = "a finite number" if above == -math.inf else f"above {above:g} and finite"
    raise ValueError(f"{name} must be {allowed}{_or(null)}, got {given!r}")


def _or(null: str) -> str:
    return f", or null for {null}" if null else ""


def did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    """Return the end of a message that asks for the closest known name, with its type if any; empty if none is close.

    >>> did_you_mean("fti", {"fit": None, "distill": None})
    ': did you mean fit?'
    """
    for close in difflib.get_close_matches(name, known, n=1):
        kind = re.sub(r"<class '|'>|\b\w+\.", "", str(known[close] or ""))
        return f": did you mean {close}{kind and f' ({kind})'}?"
    return ""
