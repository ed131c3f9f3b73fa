"""Shared reporting of the benchmarks' measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_modules.runtime.runs import commit, hardware, versions
from privacy.files import write_atomically

__all__ = ["report"]


def report(measured: dict[str, Any], table: Callable[[dict[str, Any]], str], *, output: Path) -> None:
    """Prints a measurement as a table and writes it as JSON, with the machine, the versions and the commit.

    Args:
        measured: Plain values.
        table: Makes text of them.
        output: The file; its folder is made.
    """
    result = {**measured, "hardware": hardware(), "versions": versions(), "commit": commit()}
    print(table(result))
    write_atomically(output, json.dumps(result, indent=2) + "\n")
    print(f"written to {output}", file=sys.stderr)
