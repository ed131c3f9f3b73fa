"""Descriptions of mechanisms, for guarantees and for `calibrate`."""

from __future__ import annotations

from dataclasses import dataclass

FLOATS = "as floating-point numbers, added in float64 and rounded once; not hardened against attacks on their low bits"
THRESHOLDS = "compared with whole-number thresholds that are rounded towards privacy"

_ANY_CHANGE = "zero-out of one record; the bound holds for replace-one and add-or-remove as well"


@dataclass(frozen=True)
class Description:
    """Description of a mechanism, in plain text.

    Attributes:
        mechanism: What is released.
        source: Theorem or paper behind ε.
        published_source: Theorem behind the published figure; empty if the papers have none.
        noise: How the noise was drawn; empty if there is none.
        unit: What one neighbouring change touches.
        relation: Neighbouring relation, unless a more specific one follows from what was released.
        assumption: What else the bound rests on; may be empty.
    """

    mechanism: str
    source: str
    published_source: str = ""
    noise: str = FLOATS
    unit: str = "one training record of the teacher"
    relation: str = _ANY_CHANGE
    assumption: str = ""


def of_shards(**described: str) -> Description:
    """Description of what an ensemble of teachers on disjoint shards releases; arguments as above."""
    return Description(
        unit="one training record of one teacher",
        relation=f"{_ANY_CHANGE}, where a record's id alone decides its shard and a replacement has the same",
        assumption=(
            "teachers of different shards share nothing: each record was seen by only one of them, which its stable id "
            "decides (of clients its id and label, of pictures in folders of classes a name with the class in it), and "
            "where a record is added, removed or replaced the ids of all others stay as they are"
        ),
        **described,
    )
