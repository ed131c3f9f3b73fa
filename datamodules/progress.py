"""Progress of long loops: a bar in a terminal, lines elsewhere, since minutes of silence look like a hanging fit."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import track

_T = TypeVar("_T")


def tracked(items: Iterable[_T], what: str, total: int, *, silent: bool = False) -> Iterator[_T]:
    """Yields `total` items; a log file gets a line after ten seconds, and then one a minute."""
    if silent or sys.stdout.isatty():
        yield from track(items, what, total, disable=silent, transient=True)
        return
    said = began = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - said >= (10 if said == began else 60):
            said = now
            minutes = (total - done) * (now - began) / done / 60
            print(f"{what}: {done:,} of {total:,}, {to_go(minutes)}", flush=True)
        yield item


def to_go(minutes: float) -> str:
    """The time that is left, as text."""
    return f"about {f'{minutes:.0f} min' if minutes < 90 else f'{minutes / 60:.1f} h'} to go"
