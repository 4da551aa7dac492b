"""How sure a mean over several values is, and whether paired differences are 0 on average.

A mean over strata (benchmarks, say) counts each the same: their errors add up as independent ones. Interval and test
are Student's, and beside them come those of a bootstrap within strata, which assume no shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Float64 = NDArray[np.float64]
Strata = Sequence[Sequence[float] | Float64]  # the values of each stratum

MAX_CELLS = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over values. NaN where one value alone says nothing of the spread."""

    value: float
    standard_error: float
    interval: tuple[float, float]  # Student's t
    bootstrap: tuple[float, float]  # percentiles


@dataclass(frozen=True)
class PairedTest:
    """Whether paired differences are 0 on average."""

    difference: Estimate
    t: float
    degrees_of_freedom: float
    p_value: float  # two-sided, Student's t
    bootstrap_p_value: float  # two-sided: how often a resampling of the centred differences is as far from 0


def mean_of_means(strata: Strata) -> float:
    """The mean over strata of the mean over a stratum's values: every stratum counts the same."""
    means = [np.mean(values) for values in strata]
    return float(np.mean(means))


def estimate(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> Estimate:
    """The mean of the strata's means with its error; of one stratum the plain mean."""
    means = bootstrap_means(strata, num_resamples, seed)
    return _estimate(_moments(strata), means, confidence)


def paired_test(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> PairedTest:
    """Test whether differences (by stratum) are 0 on average.

    Differences that are all 0 give p = 1, differences that are all the same number p = 0, as the limits are.
    """
    moments = _moments(strata)
    means = bootstrap_means(strata, num_resamples, seed)
    difference = _estimate(moments, means, confidence)
    if np.isnan(moments.error):
        t = p_value = bootstrap_p_value = float("nan")
    else:
        distance = np.abs(means - moments.mean)
        num_as_far = (distance >= abs(moments.mean) - 1e-12).sum()
        # One more in both, the differences as they are: a resampling never shows that p is 0.
        bootstrap_p_value = float((1 + num_as_far) / (1 + num_resamples))
        t, p_value = _student_test(moments)
    return PairedTest(
        difference=difference,
        t=t,
        degrees_of_freedom=moments.freedom,
        p_value=p_value,
        bootstrap_p_value=bootstrap_p_value,
    )


def bootstrap_means(strata: Strata, num_resamples: int, seed: int) -> Float64:
    """[num_resamples] the mean of the strata's means, values drawn anew within each stratum."""
    generator = np.random.default_rng(seed)
    total = np.zeros(num_resamples)
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        num_values = len(values)
        # In blocks: a thousand resamplings of 100,000 prompts at a time would take gigabytes.
        block = max(1, MAX_CELLS // num_values)
        for start in range(0, num_resamples, block):
            stop = min(start + block, num_resamples)
            drawn = generator.integers(0, num_values, (stop - start, num_values))
            total[start:stop] += values[drawn].mean(axis=1)
    return total / len(strata)


class _Moments(NamedTuple):
    mean: float
    error: float  # standard; NaN where a stratum has one value
    freedom: float  # degrees of freedom


def _moments(strata: Strata) -> _Moments:
    """Of the mean of the strata's means; several strata as Welch and Satterthwaite have it."""
    mean = mean_of_means(strata)
    variances = []  # of each stratum's mean
    freedoms = []
    for stratum in strata:
        if len(stratum) < 2:
            return _Moments(mean, float("nan"), 0.0)
        values = np.asarray(stratum, np.float64)
        variance = values.var(ddof=1)
        variances.append(variance / len(stratum))
        freedoms.append(len(stratum) - 1)
    shares = np.array(variances) / len(strata) ** 2
    total = float(shares.sum())
    if total == 0:
        return _Moments(mean, 0.0, float(sum(freedoms)))
    weights = []
    for share, of_stratum in zip(shares, freedoms, strict=True):
        weights.append(share**2 / of_stratum)
    error = float(np.sqrt(total))
    freedom = float(total**2 / np.sum(weights))
    return _Moments(mean, error, freedom)


def _estimate(moments: _Moments, means: Float64, confidence: float) -> Estimate:
    """`means`: those of the bootstrap."""
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


def _student_test(moments: _Moments) -> tuple[float, float]:
    """(t, two-sided p)."""
    if moments.error != 0:
        t = moments.mean / moments.error
        return t, float(2 * stdtr(moments.freedom, -abs(t)))
    if moments.mean == 0:
        return 0.0, 1.0
    return float(np.copysign(np.inf, moments.mean)), 0.0


def estimate_json(found: Estimate) -> dict[str, Any]:
    """JSON has no NaN: null in its place."""
    return {
        "value": found.value,
        "standard_error": number_or_null(found.standard_error),
        "interval": _ends_json(found.interval),
        "bootstrap_interval": _ends_json(found.bootstrap),
    }


def number_or_null(value: float) -> float | None:
    """What JSON can hold."""
    if not np.isfinite(value):
        return None
    return float(value)


def _ends_json(interval: tuple[float, float]) -> list[float | None]:
    low, high = interval
    return [number_or_null(low), number_or_null(high)]
