"""Shared reporting of the benchmarks' measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from privacy.files import write_atomically

__all__ = ["report"]


def report(result: dict[str, Any], text: str, *, output: Path) -> None:
    """Prints a measurement as a table and writes it as JSON.

    Args:
        result: Plain values.
        text: The same as text for people.
        output: The file; its folder is made.
    """
    print(text)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, json.dumps(result, indent=2) + "\n")
    print(f"written to {output}", file=sys.stderr)
