"""Checks of settings and figures that are given, and the text of those that are stated: rounded up, infinity included.

Every message names the argument, what was given and what is allowed: silently repairing a wrong privacy parameter would
give a wrong guarantee. Values that a type allows and no run can use, such as `.nan`, are refused before anything is
charged.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

_T = TypeVar("_T")


def check_delta(delta: float) -> float:
    """Returns `delta` if it is a failure probability in (0, 1)."""
    if not 0.0 < (value := check_number("delta", delta)) < 1.0:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")
    return value


def check_count(name: str, given: Any, *, minimum: int = 0, null: str = "") -> int:
    """Returns a whole number of at least `minimum` that a float can hold; refuses fractions, words and truth values.

    `null` says what None, which counts as 0, stands for, where it is allowed.

    Raises:
        ValueError: It is none.
    """
    if given is None and null:
        return 0
    if isinstance(given, bool) or not isinstance(given, Integral) or not minimum <= int(given) <= sys.float_info.max:
        raise ValueError(f"{name} must be {minimum} or more and a whole number{_or(null)}, got {given!r}")
    return int(given)


def settings_of(kind: type[_T], given: Any, *, name: str) -> _T:
    """Makes a settings object from one, or from a mapping of its fields, which a script's checkpoint holds.

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


def check_number(
    name: str,
    given: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    infinite: bool = False,
    null: str = "",
) -> float:
    """Returns a number in range as a float; infinity only if it is `infinite`. For `null` see `check_count`.

    A truth value is no number, which Python would count as 0 or 1, nor is an integer that no float can hold.

    Raises:
        ValueError: It is not.
    """
    if given is None and null:
        return math.nan
    huge = isinstance(given, int) and abs(given) > sys.float_info.max
    number = math.nan if huge or isinstance(given, bool) or not isinstance(given, Real) else float(given)
    inside = least <= number <= most and above < number and (number < below or below == math.inf)
    if inside and (infinite or math.isfinite(number)):
        return number
    low = f"above {above:g}" if above > -math.inf else f"{least:g} or more"
    high = "" if infinite else " and finite" if below == math.inf else f" and below {below:g}"
    allowed = "a finite number" if max(above, least) == -math.inf else f"{low}{high}"
    if most < math.inf:
        allowed = f"a number between {least:g} and {most:g}"
    raise ValueError(f"{name} must be {allowed}{_or(null)}, got {given!r}")


def _or(null: str) -> str:
    return f", or null for {null}" if null else ""


def did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    """Returns the end of a message that asks for the closest known name, with its type if any; empty if none is close.

    >>> did_you_mean("fti", {"fit": None, "distill": None})
    ': did you mean fit?'
    """
    for close in difflib.get_close_matches(name, known, n=1):
        kind = re.sub(r"<class '|'>|\b\w+\.", "", str(known[close] or ""))
        return f": did you mean {close}{kind and f' ({kind})'}?"
    return ""


def look_up(setting: str, value: str, known: Mapping[str, _T]) -> _T:
    """Entry `value` of a table; any other is refused, since its cost is unknown."""
    if value not in known:
        raise ValueError(f"{setting} must be one of {', '.join(known)}, got {value!r}")
    return known[value]


def registered(known: Mapping[str, type[_T]], data: Mapping[str, Any]) -> tuple[type[_T], dict[str, Any]]:
    """Returns the class that `kind` in plain values names, and the other values, which must be its fields."""
    values = dict(data)
    kind = str(values.pop("kind", None))
    cls = look_up("kind", kind, known)
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if set(values) != names:
        raise ValueError(f"fields of {kind!r} must be {sorted(names)}, got {sorted(values)}")
    return cls, values


def json_number(value: float) -> float | str:
    """Returns "inf" for infinity, which JSON lacks, and every other number unchanged."""
    if math.isnan(value) or value == -math.inf:
        raise ValueError(f"a privacy figure must be a number or infinity, got {value}")
    return "inf" if math.isinf(value) else value


def round_up(value: float, *, digits: int = 6) -> str:
    """Formats a privacy figure, rounded up to `digits` significant digits, never below its value.

    >>> round_up(3.0000001), round_up(3.0), round_up(0.12345641), round_up(math.inf)
    ('3.00001', '3', '0.123457', 'inf')
    """
    if value <= 0 or math.isinf(value):
        return f"{value:g}"
    text = f"{value:.{digits}g}"
    if float(text) < value:
        text = f"{value + 10.0 ** (math.floor(math.log10(value)) - digits + 1):.{digits}g}"
    return text


def round_down(value: float) -> str:
    """Formats a figure, rounded down to six significant digits, never above its value.

    >>> round_down(2.9999999), round_down(3.0), round_down(0.12345678)
    ('2.99999', '3', '0.123456')
    """
    text = f"{value:.6g}"
    return text if float(text) <= value else f"{value - 10.0 ** (math.floor(math.log10(value)) - 5):.6g}"


def lower_bound(value: float) -> str:
    """Formats a lower bound, rounded down to two decimals.

    >>> lower_bound(1.39513), lower_bound(0.0)
    ('1.39', '0.00')
    """
    return f"{math.floor(100 * value) / 100:.2f}"


def short_epsilon(value: float) -> str:
    """Formats a privacy bound for a table: four digits, or a whole number from 1000 on; rounded up.

    >>> short_epsilon(28.838725), short_epsilon(676028.4), short_epsilon(math.inf)
    ('28.84', '676,029', 'inf')
    """
    return f"{math.ceil(value):,}" if 1000 <= value < math.inf else round_up(value, digits=4)
