"""How a mechanism is described, for guarantees and for `calibrate`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FLOATS", "LATTICE", "MechanismDescription"]

FLOATS = "as floating-point numbers, added in float64 and rounded once; not hardened against attacks on their low bits"

LATTICE = "as discrete Gaussians on a lattice that what they are added to was rounded to: there are no low bits"


@dataclass(frozen=True)
class MechanismDescription:
    """Description of a mechanism, in plain text.

    Attributes:
        mechanism: What is released.
        unit: What one neighbouring change touches.
        relation: Neighbouring relation, where no special one follows from what was released.
        source: Theorem or paper behind ε.
        published_source: Theorem behind the published figure; empty where the papers have none.
        noise: How the noise was drawn, where that is not as floating-point numbers; empty where there is none.
        assumption: What else the bound rests on; empty for nothing.
    """

    mechanism: str
    unit: str
    relation: str
    source: str
    published_source: str = ""
    noise: str = FLOATS
    assumption: str = ""
