"""Label-level accountant: unit one label, replaced by another; images count as public."""

from __future__ import annotations

import math
from typing import Any

from privacy.accountants.base import ReleaseAccountant
from privacy.accounting.composition import compose
from privacy.events import RandomizedResponse, Release, RevealedGaussian


class LabelDPAccountant(ReleaseAccountant):
    """Exact accounting of labels: randomized responses, and direct training with noise on per-example gradients.

    A step takes each example with probability `sample_rate` and adds noise of `noise_multiplier` norm bounds.
    Changing a label moves its gradient by at most two bounds, and as images are public in this unit, who took part is
    taken as known: sampling amplifies nothing beyond the rounds in which the example is absent (DPDFD, Algorithm 3; it
    holds for DP-SGD steps as well).

    >>> accountant = LabelDPAccountant()
    >>> accountant.charge(RandomizedResponse(1.0, 10), 100)
    >>> round(accountant.get_epsilon(1e-5), 4)
    37.2055
    """

    def respond(self, epsilon: float, num_candidates: int, count: int = 1) -> None:
        """Counts `count` randomized responses, all of which one label may change."""
        self.charge(RandomizedResponse(epsilon, num_candidates), count)

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """ε at `delta`."""
        return compose(self.counts(), delta).epsilon

    def _step_release(self, noise_multiplier: float, sample_rate: float) -> Release:
        return RevealedGaussian(2.0 / noise_multiplier if noise_multiplier else math.inf, sample_rate)

    def _check(self, release: Release) -> None:
        if not isinstance(release, RandomizedResponse | RevealedGaussian):
            raise ValueError(
                f"release must be a RandomizedResponse or RevealedGaussian, stated for labels, got {release!r}"
            )

    @classmethod
    def mechanism(cls) -> str:
        return "label_dp"
