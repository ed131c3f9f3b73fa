"""Exact (ε, δ) of Gaussian differential privacy.

A mechanism is μ-GDP when distinguishing two neighbouring inputs is no easier than distinguishing N(0, 1) from N(μ, 1)
(Dong, Roth and Su, "Gaussian Differential Privacy", 2019). Adding N(0, s^2 I) to a vector of L2 sensitivity D is
exactly (D/s)-GDP, adaptively chosen compositions add μ^2, and

    δ(ε) = Phi(-ε/μ + μ/2) - exp(ε) Phi(-ε/μ - μ/2)        (Balle and Wang 2018, Theorem 8)

holds with equality. With x = ε/μ - μ/2, exp(ε) phi(x + μ) = phi(x), so with Mills' ratio M(x) = Phi(-x)/phi(x) it is
equal to phi(x) (M(x) - M(x + μ)), in which nothing overflows.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from privacy.checks import check_delta, check_nonnegative

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_SMALL_MU = 0.1
_LARGE_X = 60.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# brentq's result is increased by this fraction to be safe: far below reported precision, far above rounding.
_SAFETY = 1e-12


def _mills(x: float) -> float:
    return _SQRT_HALF_PI * float(scipy.special.erfcx(x * _SQRT_HALF))


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
    log_density = -0.5 * x * x - _LOG_SQRT_2PI
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
    mu = check_nonnegative("mu", mu, infinite=True)
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
