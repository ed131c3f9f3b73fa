"""Record-level accountants: unit one record, add or remove."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.accountants.base import ReleaseAccountant
from privacy.accounting.composition import compose
from privacy.checks import check_delta
from privacy.events import Release, RevealedGaussian, SampledGaussian
from privacy.numerics.rdp import DEFAULT_ORDERS, rdp_epsilon

_ORDERS = np.asarray(DEFAULT_ORDERS)


class _RecordAccountant(ReleaseAccountant):
    def _step_release(self, noise_multiplier: float, sample_rate: float) -> Release:
        return SampledGaussian(noise_multiplier, sample_rate)

    def _check(self, release: Release) -> None:
        if not isinstance(release, Release):
            raise ValueError(f"release must be a privacy.Release, got {release!r}")
        if isinstance(release, RevealedGaussian):
            raise ValueError(f"release must be stated for whole records, got {release!r}, which covers labels only")


class RDPAccountant(_RecordAccountant):
    """Renyi accounting of DP-SGD steps together with any other release, on a fixed dense grid of orders.

    A reading costs one addition of vectors per kind of release, however many steps there were: made for reading at
    every step.

    >>> accountant = RDPAccountant()
    >>> accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> 0.0 < accountant.get_epsilon(1e-5) < 2.0
    True
    """

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """ε at `delta`; the keyword `alphas` replaces the grid of orders, as in Opacus."""
        alphas = kwargs.get("alphas")
        delta = check_delta(delta)
        orders = _ORDERS if alphas is None else np.asarray(alphas, dtype=np.float64)
        counts = {release: count for release, count in self.counts().items() if count}
        if not counts:
            return 0.0
        total = np.zeros_like(orders)
        for release, count in counts.items():
            total = total + count * (_curve(release) if alphas is None else release.rdp(orders))
        return rdp_epsilon(total, orders, delta)

    @classmethod
    def mechanism(cls) -> str:
        return "transcription_rdp"


class ExactAccountant(_RecordAccountant):
    """The least valid bound: exact where it is known, else the smaller of RDP and loss distributions. Slower to read.

    >>> accountant = ExactAccountant()
    >>> accountant.step(noise_multiplier=0.6, sample_rate=256 / 60000)
    >>> accountant.history = [(0.6, 256 / 60000, 2344)]
    >>> round(accountant.get_epsilon(1e-5), 2)
    4.95
    """

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """ε at `delta`."""
        return compose(self.counts(), delta).epsilon

    @classmethod
    def mechanism(cls) -> str:
        return "transcription_exact"


@functools.lru_cache(maxsize=4096)
def _curve(release: Release) -> NDArray[np.float64]:
    curve = release.rdp(_ORDERS)
    curve.setflags(write=False)
    return curve
