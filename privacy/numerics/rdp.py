"""From Renyi differential privacy to (ε, δ).

Every order gives a valid bound, so a search over orders can only tighten it and never has to be exact. The conversion
is Canonne, Kamath and Steinke 2020, Proposition 12 (also Asoodeh et al. 2020; DPDFD, Theorem 1):

    ε = rdp(l) + log((l - 1)/l) - (log δ + log l)/(l - 1),      l > 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from privacy.checks import check_delta, check_nonnegative


def rdp_slope_epsilon(slope: float, delta: float) -> float:
    """ε of the linear curve rdp(l) = slope * l at its best order, which is not restricted to a grid.

    The derivative is slope + (log δ + log l)/(l - 1)^2; it has one root, since slope (l - 1)^2 + log δ + log l
    increases with l.

    >>> [round(rdp_slope_epsilon(a, 1e-5), 6) for a in (0.02, 1.63, 10.24)]
    [0.794315, 9.472543, 30.598832]
    """
    slope = check_nonnegative("slope", slope, infinite=True)
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
