"""One release as it is charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privacy.checks import check_count
from privacy.events import Release, release_from_dict
from privacy.published.claims import Claim, claim_from_dict

__all__ = ["Charge"]


@dataclass(frozen=True)
class Charge:
    """One release as the ledger counts it.

    Attributes:
        release: What it costs under record-level neighbours.
        claim: What a paper's theorem counts for it, or None where no theorem is claimed.
        queries: How many inputs the teacher was queried with for it.
        training: Identity of the training it belongs to; None where that is unknown, so that nothing else
            bounds it.
    """

    release: Release
    claim: Claim | None = None
    queries: int = 1
    training: str | None = None

    def covers(self, planned: Charge) -> bool:
        """Whether this one uses up a planned one; see `Release.covers`. All calls of a run belong to one training."""
        return self.queries == planned.queries and self.release.covers(planned.release)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and checkpoints; see `from_dict`."""
        return {
            "release": self.release.to_dict(),
            "claim": None if self.claim is None else self.claim.to_dict(),
            "queries": self.queries,
            "training": self.training,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charge:
        """Inverse of `to_dict`."""
        claim = values.get("claim")
        return cls(
            release=release_from_dict(values["release"]),
            claim=None if claim is None else claim_from_dict(claim),
            queries=check_count("queries", values["queries"]),
            training=values.get("training"),
        )
