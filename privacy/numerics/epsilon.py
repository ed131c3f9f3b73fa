"""ε in closed form: of Gaussian mechanisms, exactly; of Rényi curves; and the curve of the sampled Gaussian.

A mechanism is μ-GDP when distinguishing two neighbouring inputs is no easier than distinguishing N(0, 1) from N(μ, 1)
(Dong, Roth and Su, "Gaussian Differential Privacy", 2019). Adding N(0, s^2 I) to a vector of L2 sensitivity D is
exactly (D/s)-GDP, adaptively chosen compositions add μ^2, and

    δ(ε) = Phi(-ε/μ + μ/2) - exp(ε) Phi(-ε/μ - μ/2)        (Balle and Wang 2018, Theorem 8)

holds with equality. With x = ε/μ - μ/2, exp(ε) phi(x + μ) = phi(x), so with Mills' ratio M(x) = Phi(-x)/phi(x) it is
equal to phi(x) (M(x) - M(x + μ)), in which nothing overflows.

For Rényi differential privacy every order gives a valid bound, so a search over orders can only tighten it and never
has to be exact. The conversion is Canonne, Kamath and Steinke 2020, Proposition 12 (also Asoodeh et al. 2020; DPDFD,
Theorem 1):

    ε = rdp(l) + log((l - 1)/l) - (log δ + log l)/(l - 1),      l > 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from privacy.checks import check_delta, check_number

_SMALL_MU = 0.1
_LARGE_X = 60.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# brentq's result is increased by this fraction to be safe: far below reported precision, far above rounding.
_SAFETY = 1e-12


def _mills(x: float) -> float:
    return math.sqrt(0.5 * math.pi) * float(scipy.special.erfcx(x * math.sqrt(0.5)))


def _mills_slope(x: float) -> float:
    """-M'(x) = 1 - x M(x), by its asymptotic series for large x, where the subtraction would cancel."""
    if x > _LARGE_X:
        y = 1.0 / (x * x)
        return y * (1.0 - y * (3.0 - y * (15.0 - y * 105.0)))
    return 1.0 - x * _mills(x)


def _log_delta(mu: float, epsilon: float) -> float:
    """log δ for 0 < μ < inf and 0 <= ε < inf; -inf if even the logarithm overflows."""
    # (epsilon - mu^2/2)/mu keeps digits that epsilon/mu - mu/2 loses at large mu.
    x = (epsilon - 0.5 * mu * mu) / mu
    if not x < 1e150:
        return -math.inf
    if x < -1e150:
        return 0.0
    log_density = -0.5 * x * x - 0.5 * math.log(2.0 * math.pi)
    if mu < _SMALL_MU:
        # M(x) - M(x + mu) cancels, so integrate its derivative instead.
        points = x + 0.5 * mu * (_NODES + 1.0)
        integral = 0.5 * mu * sum(w * _mills_slope(float(p)) for w, p in zip(_WEIGHTS, points, strict=True))
        return log_density + math.log(integral) if integral > 0.0 else -math.inf
    if x < 0.0:
        second = math.exp(log_density) * _mills(x + mu)
        value = float(scipy.special.ndtr(-x)) - second
        return math.log(value) if value > 0.0 else -math.inf
    gap = _mills(x) - _mills(x + mu)
    return log_density + math.log(gap) if gap > 0.0 else -math.inf


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest ε at which a μ-GDP mechanism is (ε, δ)-DP: 0 if δ alone suffices, inf for an infinite `mu`.

    Increased by 1e-12 relative, so that δ(ε) never exceeds `delta`.

    Args:
        mu: L2 sensitivity over the noise's standard deviation, 0 to inf; squares add under composition.
        delta: failure probability in (0, 1).

    Raises:
        ValueError: `mu` is negative or not a number, or `delta` is outside (0, 1).

    >>> round(gaussian_epsilon((2 * 0.02) ** 0.5, 1e-5), 6)
    0.725522
    >>> gaussian_epsilon(0.0, 1e-5), gaussian_epsilon(float("inf"), 1e-5)
    (0.0, inf)
    """
    mu = check_number("mu", mu, least=0, infinite=True)
    delta = check_delta(delta)
    if mu == 0.0:
        return 0.0
    target = math.log(delta)
    # delta <= Phi(-x) <= exp(-x^2/2) at x = epsilon/mu - mu/2, so epsilon is below this.
    high = 0.5 * mu * mu + mu * math.sqrt(-2.0 * target)
    if math.isinf(high):
        return math.inf
    if _log_delta(mu, 0.0) <= target:
        return 0.0

    def excess(epsilon: float) -> float:
        return max(_log_delta(mu, epsilon) - target, -1e300)  # an underflown δ made finite for the interpolation

    root = scipy.optimize.brentq(excess, 0.0, high * (1.0 + 1e-9), xtol=1e-300, rtol=8.9e-16, maxiter=400)
    return float(root) * (1.0 + _SAFETY)


def rdp_slope_epsilon(slope: float, delta: float) -> float:
    """ε of the linear curve rdp(l) = slope * l at its best order, which is not restricted to a grid.

    The derivative is slope + (log δ + log l)/(l - 1)^2; it has one root, since slope (l - 1)^2 + log δ + log l
    increases with l.

    >>> [round(rdp_slope_epsilon(a, 1e-5), 6) for a in (0.02, 1.63, 10.24)]
    [0.794315, 9.472543, 30.598832]
    """
    slope = check_number("slope", slope, least=0, infinite=True)
    delta = check_delta(delta)
    if slope == 0.0 or math.isinf(slope):
        return slope
    log_delta = math.log(delta)

    def derivative(t: float) -> float:
        return slope * math.exp(2.0 * t) + log_delta + math.log1p(math.exp(t))

    # t = log(l - 1): at the upper end slope (l-1)^2 or log l alone exceeds log(1/delta).
    high = min(0.5 * math.log(-log_delta / slope), -log_delta) + 1.0
    low = min(high - 1.0, 0.5 * math.log(-log_delta) - 0.5 * math.log(slope)) - 1.0
    while derivative(low) > 0.0:
        low -= 2.0
    t = float(scipy.optimize.brentq(derivative, low, high))
    order = 1.0 + math.exp(t)
    epsilon = slope * order - math.log1p(math.exp(-t)) - (log_delta + math.log(order)) * math.exp(-t)
    return max(0.0, epsilon)


def rdp_curve_epsilon(curve: Callable[[NDArray[np.float64]], NDArray[np.float64]], delta: float) -> float:
    """ε of any curve at its best order, by the module's formula on three nested logarithmic grids over l - 1."""
    log_delta = math.log(check_delta(delta))
    low, high = math.log(1e-3), math.log(1e7)
    best = math.inf
    for _ in range(3):
        t = np.linspace(low, high, 81)
        orders = 1.0 + np.exp(t)
        with np.errstate(over="ignore"):
            values = curve(orders) + np.log1p(-1.0 / orders) - (log_delta + np.log(orders)) / (orders - 1.0)
        values = np.where(np.isnan(values), np.inf, values)
        index = int(np.argmin(values))
        best = min(best, float(values[index]))
        low, high = float(t[max(index - 1, 0)]), float(t[min(index + 1, 80)])
    return max(0.0, best)


_MAX_SAMPLED_ORDER = 4096


def sampled_gaussian_rdp(
    noise_multiplier: float, sample_rate: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """RDP of the Poisson-sampled Gaussian at any orders; exact at whole orders, inf above 4096.

    Mironov, Talwar and Zhang 2019, Section 3.3.

    log A(l) = (l - 1) rdp(l) is convex in l, so linear interpolation bounds it between whole orders.
    """
    flat = orders.ravel()
    values = np.full(flat.shape, np.inf)
    for i, order in enumerate(flat.tolist()):
        if order > _MAX_SAMPLED_ORDER:
            continue
        below = math.floor(order)
        rest = order - below
        log_moment = (1.0 - rest) * _sampled_log_moment(noise_multiplier, sample_rate, below)
        if rest:
            log_moment += rest * _sampled_log_moment(noise_multiplier, sample_rate, below + 1)
        values[i] = max(0.0, log_moment) / (order - 1.0)
    return values.reshape(orders.shape)


@functools.lru_cache(maxsize=65536)
def _sampled_log_moment(noise_multiplier: float, sample_rate: float, order: int) -> float:
    """log sum_i binom(l, i) (1-q)^(l-i) q^i exp((i^2 - i)/(2 s^2)), computed as log(1 + excess)."""
    i = np.arange(order + 1, dtype=np.float64)
    log_binomial = (
        scipy.special.gammaln(order + 1.0) - scipy.special.gammaln(i + 1.0) - scipy.special.gammaln(order - i + 1.0)
    )
    weight = log_binomial + i * math.log(sample_rate) + (order - i) * math.log1p(-sample_rate)
    exponent = (i * i - i) / (2.0 * noise_multiplier**2)
    # The weights sum to 1, so the moment is 1 + sum weight (e^x - 1), which loses no digits close to 1.
    with np.errstate(over="ignore", divide="ignore"):
        excess = weight + np.where(exponent > 30.0, exponent, np.log(np.expm1(np.minimum(exponent, 30.0))))
    total = float(np.logaddexp.reduce(excess))
    # gammaln has a relative error of about 1e-15.
    return float(np.logaddexp(0.0, total)) * (1.0 + 1e-11) if total > -700.0 else 0.0
