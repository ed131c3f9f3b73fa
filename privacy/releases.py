"""What one look at private data costs, as frozen values that can be counted, stored and composed.

A :class:`Release` is the privacy cost of **one** release under record-level neighbours (one record arbitrarily
different, which changes one teacher arbitrarily), or under the unit and relation that it names. A ledger is a mapping
from releases to how often each happened; every epsilon is a pure function of it (:mod:`privacy.composition`). A release
knows its Renyi curve for compositions with anything else, and, where it has one, the mu of an exactly equivalent
Gaussian mechanism.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from privacy import pld
from privacy.checks import check_count, check_nonnegative, check_probability
from privacy.neighbours import Relation, Unit

_REGISTRY: dict[str, type[Release]] = {}


@dataclass(frozen=True)
class Release(ABC):
    """The privacy cost of one release. Subclasses are frozen, hashable and registered by their ``kind``.

    Attributes:
        unit: what one neighbouring change touches.
        relation: how two neighbouring data sets differ in it.
    """

    kind: ClassVar[str]
    unit: Unit = field(default=Unit.RECORD, kw_only=True, repr=False)
    relation: Relation = field(default=Relation.ANY_CHANGE, kw_only=True, repr=False)

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
        """mu of the Gaussian mechanism that this release equals or is dominated by, None without one."""
        return None

    @property
    def bounded(self) -> bool:
        """False where no finite epsilon covers this release at any delta."""
        return True

    @property
    def pure_epsilon(self) -> float:
        """epsilon at delta = 0, inf where there is none: N releases never cost more than N times this."""
        return math.inf

    @property
    def lattice(self) -> float | None:
        """Spacing of the grid on which all finite losses lie exactly, None for continuous losses."""
        return None

    @property
    @abstractmethod
    def loss_deviation(self) -> float:
        """Rough standard deviation of the privacy loss: chooses grids, never enters a bound."""

    @property
    def loss_reach(self) -> float:
        """Rough width of the support of the privacy loss: chooses grids, never enters a bound."""
        return self.loss_deviation * (24.0 + self.loss_deviation)

    @abstractmethod
    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        """Loss distributions on a grid, removing and adding the record (or one thing twice, where both are alike)."""

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
    # What was written before events named their neighbours is of the default ones.
    if not names - {"unit", "relation"} <= set(values) <= names:
        raise ValueError(f"fields of a {kind!r} release must be {sorted(names)}, got {sorted(values)}")
    made = {name: _from_plain(value) for name, value in values.items()}
    for name, enum in (("unit", Unit), ("relation", Relation)):
        if name in made:
            made[name] = enum(made[name])
    return cls(**made)


def release_kinds() -> dict[str, type[Release]]:
    """Every registered kind, as a copy."""
    return dict(_REGISTRY)


def _plain(value: Any) -> Any:
    if isinstance(value, Release):
        return value.to_dict()
    if isinstance(value, Unit | Relation):
        return value.value
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return release_from_dict(value)
    return math.inf if value == "inf" else value


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

    @property
    def loss_deviation(self) -> float:
        return self.mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        loss = _null(interval) if self.mu == 0.0 else pld.gaussian_loss(self.mu, interval)
        return loss, loss


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

    @property
    def loss_deviation(self) -> float:
        return math.inf

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        loss = pld.LossDistribution(interval, 0, np.zeros(1), 1.0)
        return loss, loss


@dataclass(frozen=True)
class GaussianVotes(Release):
    """argmax(counts + N(0, noise_std^2)) over teachers on disjoint shards (Papernot et al. 2018; B's DGD+).

    One record changes one teacher, so two counts move by one: L2 = sqrt(2), and argmax is post-processing of the noisy
    counts.

    >>> round(GaussianVotes(40.0).gaussian_mu, 6)
    0.035355
    """

    kind: ClassVar[str] = "gaussian_votes"
    noise_std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_std", check_nonnegative("noise_std", self.noise_std, infinite=True))

    @property
    def gaussian_mu(self) -> float:
        return math.sqrt(2.0) / self.noise_std if self.noise_std else math.inf

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """l / noise_std^2, exact for the noisy counts."""
        return Gaussian(self.gaussian_mu).rdp(orders)

    @property
    def bounded(self) -> bool:
        return self.noise_std > 0.0

    @property
    def loss_deviation(self) -> float:
        return self.gaussian_mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        return Gaussian(self.gaussian_mu).losses(interval)


@dataclass(frozen=True)
class ThresholdCheck(Release):
    """max(counts) + N(0, noise_std^2) against a threshold (confident votes): every check costs, the rejected ones too.

    One record moves the largest count by at most one, so mu = 1/noise_std.
    """

    kind: ClassVar[str] = "threshold_check"
    noise_std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_std", check_nonnegative("noise_std", self.noise_std, infinite=True))

    @property
    def gaussian_mu(self) -> float:
        return 1.0 / self.noise_std if self.noise_std else math.inf

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """l / (2 noise_std^2)."""
        return Gaussian(self.gaussian_mu).rdp(orders)

    @property
    def bounded(self) -> bool:
        return self.noise_std > 0.0

    @property
    def loss_deviation(self) -> float:
        return self.gaussian_mu

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        return Gaussian(self.gaussian_mu).losses(interval)


@dataclass(frozen=True)
class RandomizedResponse(Release):
    """One randomized answer over ``num_candidates`` classes: the true one with probability e^eps/(e^eps + k - 1).

    The candidate set comes from the student, so a record changes the teacher's label alone: it may move within the set,
    into it or out of it. Outside, the answer is uniform, which is the average of the peaked ones; hockey-stick
    divergences are convex, so a move within the set dominates the other two. The loss is +eps, 0 or -eps, so N answers
    compose **exactly** on an integer lattice.

    >>> RandomizedResponse(1.0, 10).pure_epsilon
    1.0
    """

    kind: ClassVar[str] = "randomized_response"
    epsilon: float
    num_candidates: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_nonnegative("epsilon", self.epsilon, infinite=True))
        object.__setattr__(self, "num_candidates", check_count("num_candidates", self.num_candidates, minimum=2))

    @property
    def probabilities(self) -> tuple[float, float]:
        """Probability of the true class, and of each other one."""
        # Divided through by e^eps, which overflows at 710.
        scale = 1.0 / (1.0 + (self.num_candidates - 1) * math.exp(-self.epsilon))
        return scale, scale * math.exp(-self.epsilon)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.epsilon)

    @property
    def pure_epsilon(self) -> float:
        return self.epsilon

    @property
    def lattice(self) -> float | None:
        return self.epsilon if self.epsilon > 0.0 else None

    @property
    def loss_deviation(self) -> float:
        true, other = self.probabilities
        return self.epsilon * math.sqrt(true + other)

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """log(p^l q^(1-l) + q^l p^(1-l) + (k-2) q)/(l-1), exact."""
        order = _orders(orders)
        if not self.bounded:
            return np.full_like(order, np.inf)
        eps, k = self.epsilon, self.num_candidates
        log_norm = eps + math.log1p((k - 1) * math.exp(-eps))
        terms = [order * eps, (1.0 - order) * eps]
        if k > 2:
            terms.append(np.full_like(order, math.log(k - 2)))
        total = np.logaddexp.reduce(np.stack(terms), axis=0) - log_norm
        # Never below 0 by rounding, and never above what pure epsilon allows.
        value: NDArray[np.float64] = np.clip(total / (order - 1.0), 0.0, eps)
        return value

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        true, other = self.probabilities
        middle = (self.num_candidates - 2) * other
        eps = self.epsilon
        loss = pld.atoms(interval, [eps, 0.0, -eps], [true, middle, other]) if eps else _null(interval)
        return loss, loss


@dataclass(frozen=True)
class Repeated(Release):
    """``count`` releases of one kind made at once, such as the answers for a batch: one entry of a ledger, not many.

    Costs exactly what they cost one by one: composition counts them so.

    >>> Repeated(RandomizedResponse(1.0, 10), 256).pure_epsilon
    256.0
    """

    kind: ClassVar[str] = "repeated"
    release: Release
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.release, Release) or isinstance(self.release, Repeated):
            raise ValueError(f"release must be a single release, got {self.release!r}")
        object.__setattr__(self, "count", check_count("count", self.count, minimum=1))
        object.__setattr__(self, "unit", self.release.unit)
        object.__setattr__(self, "relation", self.release.relation)

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """``count`` times that of one."""
        return self.count * self.release.rdp(orders)

    @property
    def gaussian_mu(self) -> float | None:
        mu = self.release.gaussian_mu
        return None if mu is None else math.sqrt(self.count) * mu

    @property
    def bounded(self) -> bool:
        return self.release.bounded

    @property
    def pure_epsilon(self) -> float:
        return self.count * self.release.pure_epsilon

    @property
    def lattice(self) -> float | None:
        return self.release.lattice

    @property
    def loss_deviation(self) -> float:
        return math.sqrt(self.count) * self.release.loss_deviation

    @property
    def loss_reach(self) -> float:
        return self.count * self.release.loss_reach

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        first, second = self.release.losses(interval)
        if first is second:
            total = _power(first, self.count)
            return total, total
        return _power(first, self.count), _power(second, self.count)


@dataclass(frozen=True)
class LaplaceVector(Release):
    """A vector of L1 sensitivity ``l1_sensitivity`` with Laplace noise of scale ``scale`` on every coordinate.

    B's latent codes: normalised to [-1, 1]^c and noised at scale 2c/eps1, so l1_sensitivity = 2c and epsilon = eps1. A
    shift spread over coordinates is dominated by the same shift of one coordinate: going through it coordinate by
    coordinate is group privacy, which for log-concave location families adds shifts exactly (Dong, Roth and Su 2019,
    Section 2.4).

    >>> LaplaceVector(64.0, 6400.0).pure_epsilon
    0.01
    """

    kind: ClassVar[str] = "laplace_vector"
    l1_sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1_sensitivity", check_nonnegative("l1_sensitivity", self.l1_sensitivity))
        object.__setattr__(self, "scale", check_nonnegative("scale", self.scale, infinite=True))

    @property
    def pure_epsilon(self) -> float:
        if self.l1_sensitivity == 0.0:
            return 0.0
        return self.l1_sensitivity / self.scale if self.scale else math.inf

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.pure_epsilon)

    @property
    def loss_deviation(self) -> float:
        return self.pure_epsilon

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Of a scalar shifted by epsilon scales, exact (Mironov 2017, Proposition 6)."""
        return _laplace_rdp(self.pure_epsilon, _orders(orders))

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        shift = self.pure_epsilon
        loss = pld.laplace_loss(shift, interval) if shift else _null(interval)
        return loss, loss


@dataclass(frozen=True)
class LaplaceVotes(Release):
    """argmax(counts + Lap(scale)) over teachers on disjoint shards (Papernot et al. 2017; B, with scale 2/eps0).

    Two counts move by one: two Laplace mechanisms of unit shift, whatever the votes (data-independent).

    >>> LaplaceVotes(40.0).pure_epsilon
    0.05
    """

    kind: ClassVar[str] = "laplace_votes"
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_nonnegative("scale", self.scale, infinite=True))

    @property
    def _shift(self) -> float:
        return 1.0 / self.scale if self.scale else math.inf

    @property
    def pure_epsilon(self) -> float:
        return 2.0 * self._shift

    @property
    def bounded(self) -> bool:
        return self.scale > 0.0

    @property
    def loss_deviation(self) -> float:
        return math.sqrt(2.0) * self._shift

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Twice that of one unit-shift Laplace mechanism."""
        return 2.0 * _laplace_rdp(self._shift, _orders(orders))

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        if self._shift == 0.0:
            return _null(interval), _null(interval)
        loss = pld.convolve_pair(pld.laplace_loss(self._shift, interval))
        return loss, loss


@dataclass(frozen=True)
class DiscreteLaplaceVotes(Release):
    """argmax(counts + integers of probability proportional to exp(-|x|/scale)): noise without low bits.

    Two counts move by one, and one step of the integers has a loss of exactly +1/scale or -1/scale: two randomized
    responses between two answers (the binary mechanism that has the largest delta of all with that epsilon). So it
    costs **more** than :class:`LaplaceVotes` of the same scale, whose loss may lie in between, though pure epsilon is
    the same.

    >>> DiscreteLaplaceVotes(40.0).pure_epsilon
    0.05
    """

    kind: ClassVar[str] = "discrete_laplace_votes"
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_nonnegative("scale", self.scale, infinite=True))

    @property
    def _shift(self) -> float:
        return 1.0 / self.scale if self.scale else math.inf

    @property
    def pure_epsilon(self) -> float:
        return 2.0 * self._shift

    @property
    def bounded(self) -> bool:
        return math.isfinite(self._shift)

    @property
    def lattice(self) -> float | None:
        return 2.0 * self._shift if self._shift > 0.0 else None

    @property
    def loss_deviation(self) -> float:
        return math.sqrt(2.0) * self._shift

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Twice that of a randomized response between two answers, exact for the noisy counts."""
        return 2.0 * RandomizedResponse(self._shift, 2).rdp(orders)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        step = self._shift
        if step == 0.0:
            return _null(interval), _null(interval)
        up, down = RandomizedResponse(step, 2).probabilities
        loss = pld.atoms(interval, [2.0 * step, 0.0, -2.0 * step], [up * up, 2.0 * up * down, down * down])
        return loss, loss


@dataclass(frozen=True)
class SampledGaussian(Release):
    """One DP-SGD step: Poisson sampling, noise of ``noise_multiplier`` clipping norms, add-or-remove one record.

    What holds for a step of Opacus with Poisson sampling; batches of a shuffled loader are not covered.
    """

    kind: ClassVar[str] = "sampled_gaussian"
    noise_multiplier: float
    sample_rate: float
    relation: Relation = field(default=Relation.ADD_OR_REMOVE, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "noise_multiplier", check_nonnegative("noise_multiplier", self.noise_multiplier, infinite=True)
        )
        object.__setattr__(self, "sample_rate", check_probability("sample_rate", self.sample_rate))

    @property
    def _mu(self) -> float:
        return 1.0 / self.noise_multiplier if self.noise_multiplier else math.inf

    @property
    def gaussian_mu(self) -> float | None:
        if self.sample_rate == 0.0 or self._mu == 0.0:
            return 0.0
        return self._mu if self.sample_rate == 1.0 else None

    @property
    def bounded(self) -> bool:
        return self.sample_rate == 0.0 or math.isfinite(self._mu)

    @property
    def loss_deviation(self) -> float:
        if self.gaussian_mu is not None:
            return self.gaussian_mu
        square = min(self._mu * self._mu, 700.0)
        return min(self._mu, math.sqrt(math.log1p(self.sample_rate**2 * math.expm1(square))))

    @property
    def loss_reach(self) -> float:
        if self.gaussian_mu is not None:
            return super().loss_reach
        # Between the losses 12 deviations below the null's mean and above the shifted one's.
        q, wide, half = self.sample_rate, 12.0 * self._mu, 0.5 * self._mu * self._mu
        top = wide + half
        upper = math.log1p(q * math.expm1(top)) if top < 700.0 else top + math.log(q)
        return upper - math.log1p(q * math.expm1(-wide - half))

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Mironov, Talwar and Zhang 2019, Section 3.3, for the worse direction; see ``_sampled_log_moment``."""
        order = _orders(orders)
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).rdp(order)
        if not self.bounded:
            return np.full_like(order, np.inf)
        return _sampled_rdp(self.noise_multiplier, self.sample_rate, order)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).losses(interval)
        if self._mu > _LARGEST_SAMPLED_MU:
            # Its grid would not fit into memory; composition has RDP besides.
            loss = pld.LossDistribution(interval, 0, np.zeros(1), 1.0)
            return loss, loss
        return pld.sampled_gaussian_losses(self.noise_multiplier, self.sample_rate, interval)


@dataclass(frozen=True)
class RevealedGaussian(Release):
    """A Gaussian release that happens with probability ``sample_rate``, where the output betrays whether it happened.

    Labels in direct training on private images (C, Algorithm 3): the images are public in this unit, so the update
    shows who took part and sampling amplifies nothing. A label moves its gradient by at most two norm bounds: mu =
    2/sigma. N of them have delta = sum over K of Bin(K; N, q) delta_GDP(sqrt(K) mu).
    """

    kind: ClassVar[str] = "revealed_gaussian"
    mu: float
    sample_rate: float
    unit: Unit = field(default=Unit.LABEL, kw_only=True, repr=False)
    relation: Relation = field(default=Relation.REPLACE_ONE, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_nonnegative("mu", self.mu, infinite=True))
        object.__setattr__(self, "sample_rate", check_probability("sample_rate", self.sample_rate))

    @property
    def gaussian_mu(self) -> float | None:
        if self.sample_rate == 0.0 or self.mu == 0.0:
            return 0.0
        return self.mu if self.sample_rate == 1.0 else None

    @property
    def bounded(self) -> bool:
        return self.sample_rate == 0.0 or math.isfinite(self.mu)

    @property
    def loss_deviation(self) -> float:
        return math.sqrt(self.sample_rate) * self.mu

    @property
    def loss_reach(self) -> float:
        return self.mu * (24.0 + self.mu)

    def rdp(self, orders: ArrayLike) -> NDArray[np.float64]:
        """log(1 - q + q exp(l (l-1) mu^2 / 2))/(l - 1), exact."""
        order = _orders(orders)
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).rdp(order)
        exponent = 0.5 * order * (order - 1.0) * self.mu * self.mu
        q = self.sample_rate
        small = np.log1p(q * np.expm1(np.minimum(exponent, 1.0)))
        large = np.logaddexp(math.log1p(-q), math.log(q) + exponent)
        return np.where(exponent < 1.0, small, large) / (order - 1.0)

    def losses(self, interval: float) -> tuple[pld.LossDistribution, pld.LossDistribution]:
        if self.gaussian_mu is not None:
            return Gaussian(self.gaussian_mu).losses(interval)
        loss = pld.revealed_gaussian_loss(self.mu, self.sample_rate, interval)
        return loss, loss


def _power(loss: pld.LossDistribution, count: int) -> pld.LossDistribution:
    """The loss of ``count`` independent copies."""
    if count == 1:
        return loss
    half = pld.convolve_pair(_power(loss, count // 2))
    return pld.convolve(half, loss) if count % 2 else half


def _null(interval: float) -> pld.LossDistribution:
    return pld.LossDistribution(interval, 0, np.ones(1), 0.0)


def _laplace_rdp(shift: float, order: NDArray[np.float64]) -> NDArray[np.float64]:
    if math.isinf(shift):
        return np.full_like(order, np.inf)
    upper = np.log(order / (2.0 * order - 1.0)) + (order - 1.0) * shift
    lower = np.log((order - 1.0) / (2.0 * order - 1.0)) - order * shift
    # At tiny shifts rounding would give a value below the true one: order * shift^2 / 2 is above it and below shift.
    value = np.logaddexp(upper, lower) / (order - 1.0) + 4e-16 / (order - 1.0)
    return np.clip(value, 0.0, shift)


_LARGEST_SAMPLED_MU = 1e3
_MAX_SAMPLED_ORDER = 4096
_MAX_QUADRATURE_ORDER = 64
_MAX_QUADRATURE_REACH = 2e4


def _sampled_rdp(noise_multiplier: float, sample_rate: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """RDP of the sampled Gaussian at any orders; inf above 4096.

    log A(l) = (l - 1) rdp(l) is convex in l. So what lies between two orders where it is known is bounded by the
    straight line, and fractional orders below 64 are integrated directly, where the line would be slack.
    """
    flat = orders.ravel()
    values = np.full(flat.shape, np.inf)
    for i, order in enumerate(flat.tolist()):
        if order > _MAX_SAMPLED_ORDER:
            continue
        below = math.floor(order)
        if order == below or order > _MAX_QUADRATURE_ORDER or order > _MAX_QUADRATURE_REACH * noise_multiplier:
            rest = order - below
            log_moment = (1.0 - rest) * _sampled_log_moment(noise_multiplier, sample_rate, below)
            if rest:
                log_moment += rest * _sampled_log_moment(noise_multiplier, sample_rate, below + 1)
        else:
            log_moment = _sampled_log_moment_integral(noise_multiplier, sample_rate, order)
        values[i] = max(0.0, log_moment) / (order - 1.0)
    return values.reshape(orders.shape)


@functools.lru_cache(maxsize=65536)
def _sampled_log_moment(noise_multiplier: float, sample_rate: float, order: int) -> float:
    """log sum_i binom(l, i) (1-q)^(l-i) q^i exp((i^2 - i)/(2 s^2)), as 1 plus what exceeds it."""
    i = np.arange(order + 1, dtype=np.float64)
    log_binomial = gammaln(order + 1.0) - gammaln(i + 1.0) - gammaln(order - i + 1.0)
    weight = log_binomial + i * math.log(sample_rate) + (order - i) * math.log1p(-sample_rate)
    exponent = (i * i - i) / (2.0 * noise_multiplier**2)
    # The weights sum to 1, so the moment is 1 + sum weight (e^x - 1): no digits lost where it is close to 1.
    with np.errstate(over="ignore", divide="ignore"):
        excess = weight + np.where(exponent > 30.0, exponent, np.log(np.expm1(np.minimum(exponent, 30.0))))
    total = float(np.logaddexp.reduce(excess))
    # gammaln is good to about 1e-15 of its value.
    return float(np.logaddexp(0.0, total)) * (1.0 + 1e-11) if total > -700.0 else 0.0


@functools.lru_cache(maxsize=65536)
def _sampled_log_moment_integral(noise_multiplier: float, sample_rate: float, order: float) -> float:
    """log E[(1 - q + q e^{(2x-1)/(2 s^2)})^l], x ~ N(0, s^2), by the trapezoid rule (geometric convergence)."""
    s = noise_multiplier
    points = np.linspace(-14.0, order / s + 14.0, int(20.0 * (order / s + 28.0)) + 1)
    exponent = points / s - 0.5 / (s * s)
    ratio = np.logaddexp(math.log1p(-sample_rate), math.log(sample_rate) + exponent)
    near = np.abs(exponent) < 1.0
    ratio[near] = np.log1p(sample_rate * np.expm1(exponent[near]))
    # E[x^l] = 1 + E[x^l - 1 - l (x - 1)], whose integrand is non-negative, since E[x] = 1.
    step = math.log(points[1] - points[0]) - 0.5 * math.log(2.0 * math.pi)
    log_density = step - 0.5 * points * points
    power = order * ratio
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bracket = np.log(np.maximum(np.expm1(power) - order * np.expm1(ratio), 0.0))
    log_terms = log_density + np.where(power > 100.0, power, bracket)
    total = float(np.logaddexp.reduce(log_terms))
    return float(np.logaddexp(0.0, total)) * (1.0 + 1e-9) if total > -700.0 else 0.0
