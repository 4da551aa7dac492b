"""Estimate how certain the mean of several values is.

A mean over strata (for example benchmarks) gives each stratum equal weight, and their errors add up as independent.

The interval of a share is Clopper and Pearson's with an effective sample size (Korn and Graubard 1998): as many
independent samples as would have the variance that is seen between the values. It holds what it says where few values
are above 0, of which Student's holds a third. Where all values are equal nothing is seen of their variance, and every
value counts as one sample. A difference of two shares is what is gained minus what is lost, each with such an interval.
Their ends are joined by the squares of their distances (MOVER, Zou and Donner 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri, stdtrit

Float64 = NDArray[np.float64]
Strata = Sequence[Sequence[float] | Float64]  # values of each stratum

Ends = tuple[float, float]  # lower and upper end of an interval

UNKNOWN: Ends = (float("nan"), float("nan"))
FEW = 30
ROUNDING = 1e-10  # differences of values up to it are rounding
MAX_CELLS = 4_000_000  # random numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and confidence intervals. Errors are NaN for a single value."""

    value: float
    standard_error: float
    interval: Ends  # ends of the interval that tables print, by effective sample size
    bootstrap: Ends  # ends of the bootstrap percentile interval; too narrow for few values


def mean_of_means(strata: Strata) -> float:
    """Return the mean over strata of each stratum's mean, so that every stratum has equal weight."""
    means = [np.mean(values) for values in strata]
    return float(np.mean(means))


def estimate(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
    samples_per_value: float = np.inf,
) -> Estimate:
    """Return the mean of the strata's means with its error; with one stratum this is the plain mean.

    Values are shares from 0 to 1, each of at most `samples_per_value` samples.
    """
    means = bootstrap_means(strata, num_resamples, seed)
    interval = share_interval(strata, confidence, samples_per_value)
    return estimate_of(moments_of(strata), interval, means, confidence)


def share_interval(strata: Strata, confidence: float, samples_per_value: float = np.inf) -> Ends:
    """Return the interval of the mean over strata of shares from 0 to 1, NaN where a stratum has one value."""
    parts: list[tuple[float, Ends]] = []
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        parts.append((float(values.mean()), _interval_of(values, confidence, samples_per_value)))
    low, high = sum_interval(parts)
    return low / len(parts), high / len(parts)


def difference_interval(strata: Strata, confidence: float) -> Ends:
    """Return the interval of the mean over strata of paired differences from -1 to 1, NaN where a stratum has one.

    Fewer than `FEW` differences that vary have Student's interval: that none of five seeds has lost says little, which
    an interval of the losses alone would take for half of what there is.
    """
    parts: list[tuple[float, Ends]] = []
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        if 1 < len(values) < FEW and np.ptp(values) > ROUNDING:
            center = float(values.mean())
            reach = stdtrit(len(values) - 1, 0.5 + confidence / 2) * values.std(ddof=1) / np.sqrt(len(values))
            parts.append((center, (max(center - reach, -1.0), min(center + reach, 1.0))))
            continue
        gains = np.maximum(values, 0.0)
        losses = np.maximum(-values, 0.0)
        lost_low, lost_high = _interval_of(losses, confidence)
        gained = float(gains.mean()), _interval_of(gains, confidence)
        lost = -float(losses.mean()), (-lost_high, -lost_low)
        correlation = 0.0
        if gains.std() > 0 and losses.std() > 0:
            correlation = float(np.corrcoef(gains, -losses)[0, 1])
        parts.append((float(values.mean()), sum_interval([gained, lost], correlation)))
    low, high = sum_interval(parts)
    return low / len(parts), high / len(parts)


def sum_interval(parts: Sequence[tuple[float, Ends]], correlation: float = 0.0) -> Ends:
    """Return the interval of a sum of estimates, from each one's value and interval.

    `correlation` is that of the errors of two estimates. Estimates that are independent have none.
    """
    value = sum(of_part for of_part, _ in parts)
    below = np.array([of_part - low for of_part, (low, _) in parts])
    above = np.array([high - of_part for of_part, (_, high) in parts])
    reach = []
    for distances in (below, above):
        square = float(distances @ distances)
        if correlation:
            square += 2 * correlation * float(distances[0] * distances[1])
        reach.append(np.sqrt(max(square, 0.0)) if np.isfinite(square) else float("nan"))
    return float(value - reach[0]), float(value + reach[1])


def _interval_of(values: Float64, confidence: float, samples_per_value: float = np.inf) -> Ends:
    """Return Clopper and Pearson's interval of the mean of values from 0 to 1, with the effective sample size."""
    num = len(values)
    if num < 2:
        return UNKNOWN
    mean = float(np.clip(values.mean(), 0.0, 1.0))
    variance = float(values.var(ddof=1)) / num
    tail = 0.5 + confidence / 2
    size = float(num)
    if np.ptp(values) > ROUNDING and 0 < mean < 1:
        shrunk = float(ndtri(tail) / stdtrit(num - 1, tail)) ** 2
        size = float(np.clip(mean * (1 - mean) / variance * shrunk, 1.0, num * samples_per_value))
    right, wrong = mean * size, (1 - mean) * size
    low = float(betaincinv(right, wrong + 1, 1 - tail)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, tail)) if wrong > 0 else 1.0
    return low, high


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


def estimate_of(moments: Moments, interval: Ends, means: Float64, confidence: float) -> Estimate:
    """Return the estimate of a mean from its moments and its interval, and the bootstrap's `means`."""
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
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


def _ends_json(interval: Ends) -> list[float | None]:
    low, high = interval
    return [number_or_null(low), number_or_null(high)]
