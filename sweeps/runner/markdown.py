"""Markdown tables of pages and documents, and claimed figures in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(names: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table with these headings, whose columns of figures are aligned to the right."""
    head = [f"| {' | '.join([*names, *figures])} |", "|" + "---|" * len(names) + "---:|" * len(figures)]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def short_claim(value: float) -> str:
    """Formats a published ε for a table: four digits, or a whole number from 1000 on, rounded to nearest."""
    return "inf" if math.isinf(value) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
