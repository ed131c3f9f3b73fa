"""Formats privacy figures as text and JSON: rounded up, never below the value, infinity included."""

from __future__ import annotations

import math


def json_number(value: float) -> float | str:
    """Return "inf" for infinity, which JSON lacks, and every other number unchanged."""
    if math.isnan(value) or value == -math.inf:
        raise ValueError(f"a privacy figure must be a number or infinity, got {value}")
    return "inf" if math.isinf(value) else value


def round_up(value: float, *, digits: int = 6) -> str:
    """Format a privacy figure, rounded up to `digits` significant digits, never below its value.

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
    """Format a figure, rounded down to six significant digits, never above its value.

    >>> round_down(2.9999999), round_down(3.0), round_down(0.12345678)
    ('2.99999', '3', '0.123456')
    """
    text = f"{value:.6g}"
    return text if float(text) <= value else f"{value - 10.0 ** (math.floor(math.log10(value)) - 5):.6g}"


def lower_bound(value: float) -> str:
    """Format a lower bound, rounded down to two decimals.

    >>> lower_bound(1.39513), lower_bound(0.0)
    ('1.39', '0.00')
    """
    return f"{math.floor(100 * value) / 100:.2f}"


def short_epsilon(value: float) -> str:
    """Format a privacy bound for a table: four digits, or a whole number from 1000 on; rounded up.

    >>> short_epsilon(28.838725), short_epsilon(676028.4), short_epsilon(math.inf)
    ('28.84', '676,029', 'inf')
    """
    return f"{math.ceil(value):,}" if 1000 <= value < math.inf else round_up(value, digits=4)
