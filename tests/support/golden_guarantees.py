"""Guarantees as they were at an earlier commit: every word, and every ε to its last bit with `GOLDEN=exact`.

Otherwise to 12 digits, since another processor or version of NumPy may round otherwise.

`GOLDEN=write python -m pytest tests -k guarantee_is_what_it_was` (in one process) writes them anew: a change that moves
one has to say so.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from privacy.guarantee import Guarantee
from privacy.journal import write_atomically

FILE = Path(__file__).with_suffix(".json")


def plain(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee without random identities, and without what depends on the machine."""
    found: dict[str, Any] = guarantee.to_dict()
    for part in (found["guarantee"], found.get("label_guarantee", {})):
        part["assumptions"] = [text for text in part.get("assumptions", ()) if not text.startswith("A CONTAINER'S")]
    named = re.sub(r"\b[0-9a-f]{32}\b", "ID", json.dumps(found, ensure_ascii=False))
    content: dict[str, Any] = json.loads(named)
    return content


def require_golden(name: str, guarantee: Guarantee) -> None:
    """Holds a guarantee against the one that is kept by this name."""
    kept, found = json.loads(FILE.read_text(encoding="utf-8")), plain(guarantee)
    if os.environ.get("GOLDEN") == "write":
        kept[name] = found
        write_atomically(FILE, json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    digits = 17 if os.environ.get("GOLDEN") == "exact" else 12
    assert _rounded(kept.get(name), digits) == _rounded(found, digits), "GOLDEN=write renews it, if that is meant"


def _rounded(content: Any, digits: int) -> Any:
    if isinstance(content, dict):
        return {name: _rounded(value, digits) for name, value in content.items()}
    if isinstance(content, list):
        return [_rounded(value, digits) for value in content]
    return f"{content:.{digits}g}" if isinstance(content, float) else content
