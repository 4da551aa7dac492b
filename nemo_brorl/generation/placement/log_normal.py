"""Log-normal lengths that are cut at a limit: what is expected, and what is expected of those that have come so far."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_FAR = 8.0  # standard deviations: beyond, a probability is 0 or 1 for our purpose

_DEVIATIONS = np.linspace(-_FAR, _FAR, 1601)
_LOG_SURVIVAL = np.array([math.log(0.5 * math.erfc(deviation / math.sqrt(2))) for deviation in _DEVIATIONS])


def log_survival(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln P(Z > deviation) for Z ~ Normal(0, 1), from a table: 1e-5 off at most; beyond 8 standard deviations as at
    8."""
    return np.interp(deviations, _DEVIATIONS, _LOG_SURVIVAL)


def survival(length: float, location: float, spread: float) -> float:
    """P(L > length) for ln L ~ Normal(location, spread²)."""
    return 0.5 * math.erfc((math.log(length) - location) / (spread * math.sqrt(2))) if length > 0 else 1.0


def expected(location: float, spread: float, limit: float, age: float = 0.0) -> float:
    """E[min(L, limit) − age | L > age]: tokens still to come for one that has `age` already. At least 1 below the
    limit."""
    if age >= limit:
        return 0.0
    alive = survival(age, location, spread)
    if alive < 0.5 * math.erfc(_FAR / math.sqrt(2)):
        return min(age, limit - age)  # older than anything believed in: then as long again, as for a Pareto tail
    mean = math.exp(location + spread**2 / 2)
    between = survival(age, location + spread**2, spread) - survival(limit, location + spread**2, spread)
    return max(1.0, (mean * between + limit * survival(limit, location, spread)) / alive - age)


def quantile(probability: float, location: float, spread: float) -> float:
    """The length that is exceeded with 1 − probability."""
    return math.exp(location + spread * NormalDist().inv_cdf(probability))
