"""Estimate how certain the mean of several values is.

A mean over strata (for example benchmarks) gives each stratum equal weight, and their errors add up as independent.
Estimates have two intervals: Student's, and that of a bootstrap within strata, which assumes no distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Float64 = NDArray[np.float64]
Strata = Sequence[Sequence[float] | Float64]  # values of each stratum

MAX_CELLS = 4_000_000  # random numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and confidence intervals. Errors are NaN for a single value."""

    value: float
    standard_error: float
    interval: tuple[float, float]  # ends of Student's t interval
    bootstrap: tuple[float, float]  # ends of the bootstrap percentile interval


def mean_of_means(strata: Strata) -> float:
    """Return the mean over strata of each stratum's mean, so that every stratum has equal weight."""
    means = [np.mean(values) for values in strata]
    return float(np.mean(means))


def estimate(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> Estimate:
    """Return the mean of the strata's means with its error; with one stratum this is the plain mean."""
    means = bootstrap_means(strata, num_resamples, seed)
    return estimate_of(moments_of(strata), means, confidence)


def bootstrap_means(strata: Strata, num_resamples: int, seed: int) -> Float64:
    """Return the mean of the strata's means for each bootstrap resample [num_resamples].

    Values are resampled within each stratum.
    """
    generator = np.random.default_rng(seed)
    total = np.zeros(num_resamples)
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        num_values = len(values)
        # Drawn in blocks, because a thousand resamples of 100,000 prompts at a time would take gigabytes.
        block = max(1, MAX_CELLS // num_values)
        for start in range(0, num_resamples, block):
            stop = min(start + block, num_resamples)
            drawn = generator.integers(0, num_values, (stop - start, num_values))
            total[start:stop] += values[drawn].mean(axis=1)
    return total / len(strata)


class Moments(NamedTuple):
    """Mean, standard error and degrees of freedom of a mean over strata."""

    mean: float
    error: float  # standard error; NaN where a stratum has one value
    freedom: float  # degrees of freedom


def moments_of(strata: Strata) -> Moments:
    """Return mean, standard error and degrees of freedom of the mean over strata of each stratum's mean.

    Several strata are combined by the formula of Welch and Satterthwaite.
    """
    mean = mean_of_means(strata)
    variances = []  # variance of each stratum's mean
    freedoms = []
    for stratum in strata:
        if len(stratum) < 2:
            return Moments(mean, float("nan"), 0.0)
        values = np.asarray(stratum, np.float64)
        variance = values.var(ddof=1)
        variances.append(variance / len(stratum))
        freedoms.append(len(stratum) - 1)
    shares = np.array(variances) / len(strata) ** 2
    total = float(shares.sum())
    if total == 0:
        return Moments(mean, 0.0, float(sum(freedoms)))
    weights = []
    for share, of_stratum in zip(shares, freedoms, strict=True):
        weights.append(share**2 / of_stratum)
    error = float(np.sqrt(total))
    freedom = float(total**2 / np.sum(weights))
    return Moments(mean, error, freedom)


def estimate_of(moments: Moments, means: Float64, confidence: float) -> Estimate:
    """Return the estimate of a mean, with its standard error, t interval and bootstrap interval.

    `moments` give the standard error and the t interval, and `means` are the bootstrap's means.
    """
    tail = 0.5 + confidence / 2
    low, high = np.quantile(means, [0.5 - confidence / 2, tail])
    if np.isnan(moments.error):
        interval = (float("nan"), float("nan"))
    else:
        reach = float(stdtrit(moments.freedom, tail)) * moments.error
        interval = (moments.mean - reach, moments.mean + reach)
    return Estimate(
        value=moments.mean,
        standard_error=moments.error,
        interval=interval,
        bootstrap=(float(low), float(high)),
    )


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as a JSON object, with null in place of NaN."""
    return {
        "value": estimate.value,
        "standard_error": number_or_null(estimate.standard_error),
        "interval": _ends_json(estimate.interval),
        "bootstrap_interval": _ends_json(estimate.bootstrap),
    }


def number_or_null(value: float) -> float | None:
    """Return a number, or None in place of NaN and infinity, which JSON cannot hold."""
    if not np.isfinite(value):
        return None
    return float(value)


def _ends_json(interval: tuple[float, float]) -> list[float | None]:
    low, high = interval
    return [number_or_null(low), number_or_null(high)]
