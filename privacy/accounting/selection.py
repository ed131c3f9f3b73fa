"""What choosing among candidates by private data costs: hyperparameters, checkpoints, the winner of a sweep.

A base mechanism Q trains one candidate **and scores it**; its ledger pays for both. Q runs K times, each time afresh,
and the best output alone is released. Settings are drawn from a public list without looking at the data, and the ledger
covers each of them. K is secret, and so are the losers, their scores and the running time, which betrays K.

With f(x) = E[x^K], q = P(Q is worse than y) and ties broken by a uniform draw, the best of K has density f'(q) Q(y).
Let q' and Q' belong to the neighbouring input and p = P(K = 0), whose outcome is public. Then, for orders l > 1,

    exp((l-1) rdp(l)) <= p + exp((l-1) rdp_Q(l)) sup f'(q)^l f'(q')^(1-l),
    delta(e + c) <= E[K] delta_Q(e)   for e >= 0 and c = sup log(f'(q)/f'(q')).

The first is how Papernot and Steinke 2022 (arXiv 2110.03620) prove their theorems. The second, of the kind of Koskela,
Redberg and Wang 2024 (arXiv 2402.06701), holds because (f'(q) Q - exp(e+c) f'(q') Q')+ <= f'(q) (Q - exp(e) Q')+ and
f'(q) <= f'(1) = E[K].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammaln

from privacy.accounting.composition import EpsilonBound, compose, compose_delta
from privacy.checks import check_count, check_delta, check_nonnegative, check_positive
from privacy.events import Release
from privacy.mechanisms.noise import NoiseSource
from privacy.numerics.rdp import rdp_conversion, rdp_curve_epsilon

# From orders above 1 to Renyi divergences (natural log), and from epsilon >= 0 to delta, in both directions.
Curve: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Profile: TypeAlias = Callable[[float], float]

# Theorem 2 holds for every second order, so a grid is enough; order 1 is added where it is used.
_SECOND_ORDERS = 1.0 + np.geomspace(1e-3, 1e9, 361)


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """D(eta, gamma): P(K = k) is proportional to (1-gamma)^k prod_{l<k} (l+eta)/(l+1), k >= 1.

    Papernot and Steinke 2022, Definition 1: geometric at eta = 1, logarithmic at eta = 0. eta lies above -1, and a
    smaller one spreads K more; gamma lies in (0, 1), and a smaller one runs more candidates.

    >>> TruncatedNegativeBinomial(1.0, 0.1).mean
    10.0
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not -1.0 < float(self.eta) < math.inf:
            raise ValueError(f"eta must be above -1 and finite, got {self.eta!r}")
        if not 0.0 < float(self.gamma) < 1.0:
            raise ValueError(f"gamma must be in (0, 1), got {self.gamma!r}")

    @classmethod
    def of_mean(cls, mean: float, *, eta: float = 1.0) -> TruncatedNegativeBinomial:
        """The one that runs `mean` candidates on average.

        >>> round(TruncatedNegativeBinomial.of_mean(10.0).gamma, 9)
        0.1
        """
        least, most = cls(eta, 1.0 - 1e-9).mean, cls(eta, 1e-300).mean
        if not least <= float(mean) <= most:
            raise ValueError(f"mean must be in [{least}, {most}] at eta = {eta}, got {mean!r}")
        return cls(eta, math.exp(brentq(lambda t: math.log(cls(eta, math.exp(t)).mean / mean), -700.0, -1e-10)))

    @property
    def mean(self) -> float:
        """E[K] = eta (1-gamma) / (gamma (1 - gamma^eta)), at eta = 0 its limit."""
        eta = self.eta or 1e-290
        return (1.0 - self.gamma) / self.gamma * (eta / -math.expm1(eta * math.log(self.gamma)))

    def log_mass(self, counts: ArrayLike) -> NDArray[np.float64]:
        """log P(K = k) at whole numbers k >= 1, shape of `counts`."""
        k, rate, eta = np.asarray(counts, dtype=np.float64), -math.log(self.gamma), self.eta or 1e-290
        # log |gamma^-eta - 1| |Gamma(eta)|, without gamma^-eta, which may overflow.
        norm = max(eta, 0.0) * rate + math.log(-math.expm1(-abs(eta) * rate)) + float(gammaln(eta))
        return np.asarray(k * math.log1p(-self.gamma) + gammaln(k + eta) - gammaln(k + 1.0) - norm)


@dataclass(frozen=True)
class Poisson:
    """K ~ Poisson(mu), mu above 0. Where K = 0 a fixed public output is released, such as an untrained student."""

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_positive("mu", self.mu))

    @property
    def mean(self) -> float:
        return self.mu

    def log_mass(self, counts: ArrayLike) -> NDArray[np.float64]:
        """log P(K = k) at whole numbers k >= 0, shape of `counts`."""
        return np.asarray(np.multiply(counts, math.log(self.mu)) - self.mu - gammaln(np.add(counts, 1.0)))


Distribution: TypeAlias = TruncatedNegativeBinomial | Poisson


@dataclass(frozen=True)
class SelectionCost:
    """epsilon (natural log) of the winner, in the base releases' unit and relation, and the bound that was smallest.

    `method`: "profile", "rdp", "pure", "composition", or "unbounded" where no bound is finite.
    """

    epsilon: float
    delta: float
    method: str
    expected_candidates: float


def pure_selection_epsilon(epsilon: float, law: TruncatedNegativeBinomial) -> float:
    """(2 + eta) epsilon at delta = 0, for runs that are epsilon-DP each, whatever gamma.

    Papernot and Steinke 2022, Corollary 3; at eta = 1 the 3 epsilon of Liu and Talwar 2019 (arXiv 1811.07971).

    Raises:
        ValueError: `epsilon` is negative.

    >>> pure_selection_epsilon(0.5, TruncatedNegativeBinomial(1.0, 0.01))
    1.5
    """
    return (2.0 + law.eta) * check_nonnegative("epsilon", epsilon, infinite=True)


def negative_binomial_rdp(curve: Curve, orders: ArrayLike, law: TruncatedNegativeBinomial) -> NDArray[np.float64]:
    """Renyi curve of the best of K ~ D(eta, gamma) runs: Papernot and Steinke 2022, Theorem 2.

        rdp(l) <= rdp_Q(l) + log(E[K])/(l-1) + (1+eta) min_m [(1 - 1/m) rdp_Q(m) + log(1/gamma)/m],     l > 1, m >= 1.

    f'(x) = E[K] (gamma/g(x))^(1+eta) with g(x) = 1 - (1-gamma) x >= gamma. As g is the probability of an event, order m
    gives g(q')/g(q) <= exp((1 - 1/m) rdp_Q(m)) g(q)^(-1/m).

    Args:
        curve: of one run.
        orders: l, above 1; the result has their shape.
        law: of K.

    Raises:
        ValueError: An order is not above 1.

    >>> negative_binomial_rdp(lambda l: 0.0 * l + 0.5, [2.0, 1e9], TruncatedNegativeBinomial(1.0, 0.1)).round(4)
    array([3.8026, 1.5   ])
    """
    order, rate = np.asarray(orders, dtype=np.float64), -math.log(law.gamma)
    if not np.all(order > 1.0):
        raise ValueError(f"orders must all be above 1, got {orders!r}")
    second = (1.0 - 1.0 / _SECOND_ORDERS) * curve(_SECOND_ORDERS) + rate / _SECOND_ORDERS
    return curve(order) + math.log(law.mean) / (order - 1.0) + (1.0 + law.eta) * min(rate, float(np.min(second)))


def poisson_rdp(curve: Curve, profile: Profile, orders: ArrayLike, law: Poisson) -> NDArray[np.float64]:
    """Renyi curve of the best of K ~ Poisson(mu) runs: Papernot and Steinke 2022, Theorem 6, with K = 0 kept.

        exp((l-1) rdp(l)) <= exp(-mu) + mu exp((l-1) (rdp_Q(l) + mu delta_Q(log(1 + 1/(l-1))))),                l > 1.

    f'(x) = mu exp(mu (x-1)), and 1-q' <= exp(e) (1-q) + delta_Q(e) makes l q - (l-1) q' - 1 at most (l-1) delta_Q(e)
    where exp(e) = l/(l-1). Theorem 6 has no exp(-mu), which for mu < 1 gives a base without a cost a negative curve.

    Args:
        curve: of one run.
        profile: of one run.
        orders: l, above 1; the result has their shape.
        law: of K.

    Raises:
        ValueError: An order is not above 1.

    >>> poisson_rdp(lambda l: 0.0 * l, lambda epsilon: 0.0, [2.0], Poisson(1.0)).round(4)
    array([0.3133])
    """
    order, mu = np.asarray(orders, dtype=np.float64), law.mu
    if not np.all(order > 1.0):
        raise ValueError(f"orders must all be above 1, got {orders!r}")
    deltas = np.array([profile(math.log1p(1.0 / (x - 1.0))) for x in order.ravel().tolist()]).reshape(order.shape)
    return np.logaddexp(-mu, math.log(mu) + (order - 1.0) * (curve(order) + mu * deltas)) / (order - 1.0)


def profile_epsilon(epsilon_at: Profile, profile: Profile, delta: float, law: Distribution) -> float:
    """epsilon_Q(delta/E[K]) + c at `delta`, the module's second bound on the best of K runs.

    D(eta, gamma): c = (1+eta) e for any e with delta_Q(e) <= (exp(e)-1) gamma/(1-gamma), since 1-q' <= exp(e) (1-q) +
    delta_Q(e) then gives g(q') <= exp(e) g(q). Poisson: log(f'(q)/f'(q')) = mu (q-q'), so c = mu delta_Q(0).

    Args:
        epsilon_at: epsilon_Q of one run, from a delta in (0, 1).
        profile: delta_Q of one run.
        delta: failure probability in (0, 1).
        law: of K.

    Raises:
        ValueError: `delta` is outside (0, 1).

    >>> law = TruncatedNegativeBinomial(1.0, 0.1)
    >>> round(profile_epsilon(lambda delta: 0.5, lambda e: float(e < 0.5), 1e-5, law), 4)
    1.5
    """
    # Fewer runs than one on average may take the quotient past 1, where any epsilon will do.
    one = epsilon_at(min(check_delta(delta) / law.mean, 1.0 - 1e-9))
    if isinstance(law, Poisson):
        return one + law.mu * profile(0.0)
    # The upper end always fulfils the condition: at first because no delta exceeds 1.
    low, high = 0.0, 0.0 if profile(0.0) <= 0.0 else -math.log(law.gamma)
    while high - low > 1e-5 * high:
        middle = 0.5 * (low + high)
        fulfilled = profile(middle) <= math.expm1(middle) * law.gamma / (1.0 - law.gamma)
        low, high = (low, middle) if fulfilled else (middle, high)
    return one + (1.0 + law.eta) * high


def all_candidates(base: Mapping[Release, int], n: int, delta: float) -> EpsilonBound:
    """What a naive sweep costs: `n` candidates, all released or the winner picked by looking, composed plainly.

    Raises:
        ValueError: `n` is below 1, or a count or `delta` is out of range.

    >>> from privacy.events import Gaussian
    >>> all_candidates({Gaussian(0.2): 1}, 25, 1e-5) == compose({Gaussian(0.2): 25}, 1e-5)
    True
    """
    n = check_count("n", n, minimum=1)
    return compose({release: n * check_count("count", count) for release, count in base.items()}, delta)


def selection_epsilon(base: Mapping[Release, int], *, delta: float, distribution: Distribution | int) -> SelectionCost:
    """What releasing the winner costs: the smallest of the bounds that hold.

    Args:
        base: what one candidate releases, its score included, and how often; it has to cover every setting.
        delta: failure probability in (0, 1).
        distribution: of K; a whole number is a sweep that everybody knows, and pays for all its candidates.

    Raises:
        ValueError: A bad count, `delta` or number of candidates.

    >>> from privacy.events import Gaussian
    >>> laws = [10, Poisson(10.0), TruncatedNegativeBinomial(1.0, 0.1)]
    >>> costs = [selection_epsilon({Gaussian(0.2): 1}, delta=1e-5, distribution=law) for law in laws]
    >>> [(round(cost.epsilon, 3), cost.method) for cost in costs]
    [(2.594, 'composition'), (1.499, 'rdp'), (1.194, 'profile')]
    """
    if isinstance(distribution, (TruncatedNegativeBinomial, Poisson)):
        bounds, mean = _bounds(base, delta, distribution), distribution.mean
    else:
        bounds, mean = {"composition": all_candidates(base, distribution, delta).epsilon}, float(distribution)
    epsilon, method = min((epsilon, method) for method, epsilon in bounds.items())
    return SelectionCost(epsilon, delta, method if math.isfinite(epsilon) else "unbounded", mean)


def draw_candidates(noise: NoiseSource, distribution: Distribution) -> int:
    """K, by inverting its distribution function at one 64-bit word.

    Sums of float64 misplace a mass below 1e-10, which adds up to 1 + exp(epsilon) times that to delta. Keep K out of
    logs, progress bars and file names; a source that is not `secure` voids the guarantee.
    """
    first, passed = 0 if isinstance(distribution, Poisson) else 1, 0.0
    point = (float(noise.words(1)[0]) + 0.5) * 2.0**-64
    while True:
        sums = passed + np.cumsum(np.exp(distribution.log_mass(np.arange(first, first + 256))))
        index = int(np.searchsorted(sums, point, side="right"))
        # Past the mean, a chunk that adds nothing holds less than float64 can tell.
        if index < sums.size or (sums[-1] == passed and first > distribution.mean):
            return first + index
        first, passed = first + sums.size, float(sums[-1])


def _bounds(base: Mapping[Release, int], delta: float, law: Distribution) -> dict[str, float]:
    # Zero counts cost nothing, even of an unbounded release.
    items = [(release, count) for release, count in base.items() if count]
    profile = functools.partial(compose_delta, base)

    def curve(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        return sum((count * release.rdp(orders) for release, count in items), start=np.zeros_like(orders))

    bounds = {"profile": profile_epsilon(lambda d: compose(base, d).epsilon, profile, delta, law)}
    if isinstance(law, TruncatedNegativeBinomial):
        bounds["pure"] = pure_selection_epsilon(math.fsum(n * release.pure_epsilon for release, n in items), law)
        bounds["rdp"] = rdp_curve_epsilon(lambda orders: negative_binomial_rdp(curve, orders, law), delta)
        return bounds
    # Two small grids over the order, since each order asks for a composed delta.
    low, high, values = 1e-2, 1e4, np.zeros(0)
    for _ in range(2):
        t = np.geomspace(low, high, 25)
        values = rdp_conversion(poisson_rdp(curve, profile, 1.0 + t, law), 1.0 + t, delta)
        index = int(np.argmin(values))
        low, high = float(t[max(index - 1, 0)]), float(t[min(index + 1, 24)])
    return {**bounds, "rdp": max(0.0, float(np.min(values)))}
