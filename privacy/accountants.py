"""Accountants in Opacus's form, registered with Opacus by name as soon as this module is imported.

>>> from opacus import PrivacyEngine
>>> PrivacyEngine(accountant="transcription_rdp").accountant.get_epsilon(1e-5)
0.0

Kept apart from `privacy` itself, which needs no Opacus and imports in a fraction of its time.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opacus.accountants import IAccountant, register_accountant

from privacy.accounting.composition import compose
from privacy.checks import check_count, check_delta, check_nonnegative, check_probability
from privacy.events import RandomizedResponse, Release, RevealedGaussian, SampledGaussian, release_from_dict
from privacy.numerics.rdp import DEFAULT_ORDERS, rdp_epsilon

__all__ = ["ACCOUNTANTS", "ExactAccountant", "LabelDPAccountant", "RDPAccountant", "ReleaseAccountant"]

_RELEASES = "releases"
_ORDERS = np.asarray(DEFAULT_ORDERS)


class ReleaseAccountant(IAccountant):  # type: ignore[misc]
    """Counts releases; ε is a pure function of the counts, so neither order nor resuming changes it.

    Attributes:
        history: (noise multiplier, sample rate, steps) in Opacus's form, since Opacus writes it directly while it
            calibrates.
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []
        self._releases: dict[Release, int] = {}

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Counts one optimizer step. O(1)."""
        if self.history:
            noise, rate, steps = self.history[-1]
            if noise == noise_multiplier and rate == sample_rate:
                self.history[-1] = (noise, rate, steps + 1)
                return
        noise = check_nonnegative("noise_multiplier", noise_multiplier)
        self.history.append((noise, check_probability("sample_rate", sample_rate), 1))

    def charge(self, release: Release, count: int = 1) -> None:
        """Counts `count` releases of one kind. O(1).

        Raises:
            ValueError: This accountant's unit or relation does not cover the release, or `count` is negative.
        """
        self._check(release)
        self._releases[release] = self._releases.get(release, 0) + check_count("count", count)

    def counts(self) -> dict[Release, int]:
        """Everything that was released, steps included."""
        total = dict(self._releases)
        for noise, rate, steps in self.history:
            release = self._step_release(noise, rate)
            total[release] = total.get(release, 0) + int(steps)
        return total

    @abstractmethod
    def _step_release(self, noise_multiplier: float, sample_rate: float) -> Release:
        """What one optimizer step releases in this accountant's unit."""

    @abstractmethod
    def _check(self, release: Release) -> None:
        """Raise ValueError for a release whose cost is stated in another unit or relation."""

    @abstractmethod
    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """ε spent so far, 0 for an empty history. Unknown keywords, which Opacus passes on, are ignored."""

    def __len__(self) -> int:
        """Steps and other releases so far; Opacus warns when an accountant that is not empty is attached again."""
        return sum(int(steps) for _, _, steps in self.history) + sum(self._releases.values())

    @classmethod
    @abstractmethod
    def mechanism(cls) -> str:
        """The name under which Opacus knows the accountant."""

    def state_dict(self, destination: Any = None) -> Any:
        """Plain values that `torch.load(weights_only=True)` reads; nothing is shared with the accountant."""
        state = OrderedDict() if destination is None else destination
        state["history"] = [tuple(entry) for entry in self.history]
        state["mechanism"] = self.mechanism()
        state[_RELEASES] = [(release.to_dict(), count) for release, count in self._releases.items()]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replaces what was counted by what was saved.

        Raises:
            ValueError: The state is empty, of another mechanism, or holds what this accountant refuses; nothing is
                changed.
        """
        if not state_dict:
            raise ValueError("state_dict must hold history and mechanism, got nothing")
        missing = {"history", "mechanism", _RELEASES} - set(state_dict)
        if missing:
            raise ValueError(f"state_dict must hold history, mechanism and releases, got none for {sorted(missing)}")
        if state_dict["mechanism"] != self.mechanism():
            raise ValueError(f"state_dict must be of {self.mechanism()!r}, got {state_dict['mechanism']!r}")
        releases: dict[Release, int] = {}
        for data, count in state_dict[_RELEASES]:
            release = release_from_dict(data)
            self._check(release)
            releases[release] = releases.get(release, 0) + check_count("count", count)
        history = []
        for noise, rate, steps in state_dict["history"]:
            self._step_release(noise, rate)
            history.append((float(noise), float(rate), check_count("steps", steps)))
        self.history, self._releases = history, releases


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


ACCOUNTANTS: tuple[type[ReleaseAccountant], ...] = (RDPAccountant, ExactAccountant, LabelDPAccountant)

for _accountant in ACCOUNTANTS:
    # force: importing twice, as a reload does, is not a conflict.
    register_accountant(_accountant.mechanism(), _accountant, force=True)
