"""What one look at private data costs, as frozen values that can be counted, stored and composed.

A :class:`Release` is the privacy cost of **one** release under record-level neighbours (one record arbitrarily different, which
changes one teacher arbitrarily). A ledger is a mapping from releases to how often each happened; every epsilon is a pure
function of it (:mod:`privacy.composition`). A release knows its Renyi curve for compositions with anything else, and, where it
has one, the mu of an exactly equivalent Gaussian mechanism.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.checks import check_nonnegative

_REGISTRY: dict[str, type[Release]] = {}


@dataclass(frozen=True)
class Release(ABC):
    """The privacy cost of one release. Subclasses are frozen, hashable and registered by their ``kind``."""

    kind: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kind = cls.__dict__.get("kind")
        if kind is None:
            return
        if kind in _REGISTRY:
            raise ValueError(f"kind must be unique among releases, got {kind!r} twice")
        _REGISTRY[kind] = cls

    @abstractmethod
    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Upper bound on the Renyi divergence, both directions, at each order above 1; shape of ``orders``."""

    @property
    def gaussian_mu(self) -> float | None:
        """mu of the Gaussian mechanism that this release equals exactly (or is dominated by), None where there is none."""
        return None

    @property
    def bounded(self) -> bool:
        """False where no finite epsilon covers this release at any delta."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``release_from_dict`` is the inverse. Infinite numbers become the string "inf"."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"kind": self.kind, **fields}


def release_from_dict(data: Mapping[str, Any]) -> Release:
    """Rebuild a release from ``to_dict``.

    Raises:
        ValueError: if the kind is unknown or the fields do not fit it.

    >>> release_from_dict({"kind": "gaussian", "mu": 0.5})
    Gaussian(mu=0.5)
    """
    values = dict(data)
    kind = values.pop("kind", None)
    if kind not in _REGISTRY:
        raise ValueError(f"kind must be one of {sorted(_REGISTRY)}, got {kind!r}")
    cls = _REGISTRY[kind]
    names = {field.name for field in dataclasses.fields(cls)}
    if set(values) != names:
        raise ValueError(f"fields of a {kind!r} release must be {sorted(names)}, got {sorted(values)}")
    return cls(**{name: math.inf if value == "inf" else value for name, value in values.items()})


def release_kinds() -> dict[str, type[Release]]:
    """Every registered kind, as a copy."""
    return dict(_REGISTRY)


def _plain(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _orders(orders: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(orders, dtype=np.float64)
    if not np.all(array > 1.0):
        raise ValueError(f"orders must all be above 1, got {orders!r}")
    return array


@dataclass(frozen=True)
class Gaussian(Release):
    """Gaussian noise on a vector: ``mu`` is the L2 sensitivity divided by the noise deviation. Exactly mu-GDP.

    Adaptively chosen queries compose exactly when their scales are fixed beforehand: mu^2 adds.

    >>> Gaussian(0.2).rdp([2.0])
    array([0.04])
    """

    kind: ClassVar[str] = "gaussian"
    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_nonnegative("mu", self.mu, infinite=True))

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """mu^2 l / 2, exact (Mironov 2017, Proposition 7)."""
        return 0.5 * self.mu * self.mu * _orders(orders)

    @property
    def gaussian_mu(self) -> float | None:
        return self.mu

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.mu)


@dataclass(frozen=True)
class Unbounded(Release):
    """A release that nothing bounds; ``reason`` is printed wherever the resulting ``inf`` is shown."""

    kind: ClassVar[str] = "unbounded"
    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"reason must say in words why nothing bounds the release, got {self.reason!r}")

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        return np.full_like(_orders(orders), np.inf)

    @property
    def bounded(self) -> bool:
        return False
