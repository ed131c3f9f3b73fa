"""Events that nothing bounds for a record: no noise at all, or noise that only covers labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events.base import Release, checked_orders
from privacy.neighbours import Relation, Unit


class _Infinite(Release):
    """An event with an infinite ε at every δ."""

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        return np.full_like(checked_orders(orders), np.inf)

    @property
    def loss_std(self) -> float:
        return math.inf


@dataclass(frozen=True)
class Unbounded(_Infinite):
    """A release that nothing bounds; `reason` is printed wherever the resulting `inf` is shown."""

    kind: ClassVar[str] = "unbounded"
    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"reason must say in words why nothing bounds the release, got {self.reason!r}")


@dataclass(frozen=True)
class LabelOnly(_Infinite):
    """Something computed from raw private images, and from their labels only through `release`.

    In direct training on private records (DPDFD, Algorithm 3) the label enters through a noisy gradient of the outputs,
    which the update then multiplies by a Jacobian of the image. Nothing bounds a record. For its label `release` is the
    whole cost, against an adversary who knows every image: see `for_labels`. One event states both, so that no ledger
    can hold the finite figure without the infinite one.

    >>> from privacy.events import RevealedGaussian
    >>> LabelOnly(RevealedGaussian(1.0, 0.01)).bounded
    False

    Raises:
        ValueError: `release` is not stated for replacing a label.
    """

    kind: ClassVar[str] = "label_only"
    release: Release

    def __post_init__(self) -> None:
        release = self.release
        if not isinstance(release, Release) or (release.unit, release.relation) != (Unit.LABEL, Relation.REPLACE_ONE):
            raise ValueError(f"release must be stated for replacing the label of one record, got {release!r}")

    @property
    def reason(self) -> str:
        """Why nothing bounds a record, printed wherever the infinite ε is shown."""
        return "private images were used without noise: only what is released about their labels is noised"

    @property
    def for_labels(self) -> Release:
        return self.release

    def covers(self, planned: Release) -> bool:
        return isinstance(planned, LabelOnly) and self.release.covers(planned.release)
