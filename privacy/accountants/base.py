"""What all accountants share: Opacus's step history, a count of other releases, and how both are saved."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from opacus.accountants import IAccountant

from privacy.checks import check_count, check_nonnegative, check_probability
from privacy.events import Release, release_from_dict

_RELEASES = "releases"


class ReleaseAccountant(IAccountant):  # type: ignore[misc]
    """Counts releases; epsilon is a pure function of the counts, so neither order nor resuming changes it.

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
        """epsilon spent so far, 0 for an empty history. Unknown keywords, which Opacus passes on, are ignored."""

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
