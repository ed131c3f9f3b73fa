"""An Opacus accountant, which importing this module registers with Opacus by name.

>>> from opacus import PrivacyEngine
>>> PrivacyEngine(accountant="transcription_exact").accountant.get_epsilon(1e-5)
0.0

Kept out of `privacy` itself, which does not need Opacus and imports in a fraction of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from opacus.accountants import IAccountant, register_accountant

from privacy.accounting.composition import compose
from privacy.checks import check_count, check_number
from privacy.events import Release, SampledGaussian, release_from_dict
from privacy.events.base import Unit

NAME = "transcription_exact"
"""Name under which Opacus knows the accountant."""


class ExactAccountant(IAccountant):  # type: ignore[misc]
    """The smallest valid bound on DP-SGD steps together with any other release; see `compose`.

    It keeps only counts, of which ε is a function, so neither order nor resuming changes ε.

    Attributes:
        history: (noise multiplier, sample rate, steps) in Opacus's form, since Opacus writes it directly while it
            calibrates.

    >>> accountant = ExactAccountant()
    >>> accountant.step(noise_multiplier=0.6, sample_rate=256 / 60000)
    >>> accountant.history = [(0.6, 256 / 60000, 2344)]
    >>> round(accountant.get_epsilon(1e-5), 2)
    4.95
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []
        self._releases: Counter[Release] = Counter()

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Counts one optimizer step. O(1)."""
        if self.history:
            noise, rate, steps = self.history[-1]
            if noise == noise_multiplier and rate == sample_rate:
                self.history[-1] = (noise, rate, steps + 1)
                return
        noise = check_number("noise_multiplier", noise_multiplier, least=0)
        self.history.append((noise, check_number("sample_rate", sample_rate, least=0, most=1), 1))

    def charge(self, release: Release, count: int = 1) -> None:
        """Counts `count` releases of one kind. O(1).

        Raises:
            ValueError: `release` is stated for labels, or `count` is negative.
        """
        if release.unit is Unit.LABEL:
            raise ValueError(f"release must be stated for whole records, got {release!r}, which covers labels only")
        self._releases[release] += check_count("count", count)

    def counts(self) -> Counter[Release]:
        """Everything that was released, including steps."""
        total = Counter(self._releases)
        for noise, rate, steps in self.history:
            total[SampledGaussian(noise, rate)] += int(steps)
        return total

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """ε spent so far, 0 for an empty history. Other keywords, which Opacus passes on, are ignored."""
        return compose(self.counts(), delta).epsilon

    def __len__(self) -> int:
        """Steps and other releases so far; Opacus warns when an accountant that is not empty is attached again."""
        return sum(int(steps) for _, _, steps in self.history) + self._releases.total()

    @classmethod
    def mechanism(cls) -> str:
        """Name under which Opacus knows the accountant."""
        return NAME

    def state_dict(self, destination: Any = None) -> Any:
        """Plain values that `torch.load(weights_only=True)` reads; nothing is shared with the accountant."""
        state = super().state_dict(destination)
        state["releases"] = [(release.to_dict(), count) for release, count in self._releases.items()]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replaces what was counted by what was saved.

        Raises:
            ValueError: The state is not one of this accountant; nothing is changed.
        """
        missing = {"history", "mechanism", "releases"} - set(state_dict or ())
        if missing:
            raise ValueError(f"state_dict must hold history, mechanism and releases, got none for {sorted(missing)}")
        if state_dict["mechanism"] != self.mechanism():
            raise ValueError(f"state_dict must be of {self.mechanism()!r}, got {state_dict['mechanism']!r}")
        loaded = ExactAccountant()
        for data, count in state_dict["releases"]:
            loaded.charge(release_from_dict(data), count)
        for noise, rate, steps in state_dict["history"]:
            SampledGaussian(noise, rate)  # refuses invalid steps
            loaded.history.append((float(noise), float(rate), check_count("steps", steps)))
        self.history, self._releases = loaded.history, loaded._releases


# force: importing twice, as a reload does, is not a conflict.
register_accountant(NAME, ExactAccountant, force=True)
