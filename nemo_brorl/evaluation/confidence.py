"""How sure a mean over prompts is, and whether two models differ on the same prompts.

Samples of one prompt resemble each other, so the unit is the prompt: a prompt's value is the mean over its samples, and
the standard error is that of these values, which for equally many samples of each is the clustered one (Miller, arXiv
2411.00640). A mean over several benchmarks, each counting the same, is a mean over strata: their errors add up as
independent ones.

Interval and test are Student's, and beside them come those of a bootstrap over prompts (within strata), which assume no
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Strata = Sequence[Sequence[float]]  # per stratum the values of its prompts

MAX_CELLS = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts. NaN where one prompt alone says nothing of the spread."""

    value: float
    standard_error: float
    interval: tuple[float, float]  # Student's t
    bootstrap: tuple[float, float]  # percentiles


@dataclass(frozen=True)
class PairedTest:
    """Differences of two models on the same prompts."""

    difference: Estimate
    t: float
    degrees_of_freedom: float
    p_value: float  # two-sided, Student's t
    bootstrap_p_value: float  # two-sided: how often a resampling of the centred differences is as far from 0


def estimate(strata: Strata, confidence: float, num_resamples: int, seed: int) -> Estimate:
    """The mean of the strata's means with its error; one stratum: the plain mean over prompts."""
    mean, error, freedom = _moments(strata)
    means = bootstrap_means(strata, num_resamples, seed)
    return Estimate(mean, error, _student(mean, error, freedom, confidence), _percentiles(means, confidence))


def paired_test(strata: Strata, confidence: float, num_resamples: int, seed: int) -> PairedTest:
    """Test whether differences (one for each prompt, by stratum) are 0 on average.

    Differences that are all 0 give p = 1, differences that are all the same number p = 0, as the limits are.
    """
    mean, error, freedom = _moments(strata)
    means = bootstrap_means(strata, num_resamples, seed)
    found = Estimate(mean, error, _student(mean, error, freedom, confidence), _percentiles(means, confidence))
    as_far = np.abs(means - mean) >= abs(mean) - 1e-12
    bootstrap_p = float((1 + as_far.sum()) / (1 + num_resamples))
    if np.isnan(error):
        return PairedTest(found, float("nan"), freedom, float("nan"), float("nan"))
    if error == 0:
        return PairedTest(
            found, 0.0 if mean == 0 else float(np.copysign(np.inf, mean)), freedom, float(mean == 0), bootstrap_p
        )
    t = mean / error
    return PairedTest(found, t, freedom, float(2 * stdtr(freedom, -abs(t))), bootstrap_p)


def bootstrap_means(strata: Strata, num_resamples: int, seed: int) -> NDArray[np.float64]:
    """[num_resamples] the mean of the strata's means, prompts drawn anew within each stratum."""
    generator = np.random.default_rng(seed)
    total = np.zeros(num_resamples)
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        block = max(1, MAX_CELLS // len(values))
        for start in range(0, num_resamples, block):
            stop = min(start + block, num_resamples)
            total[start:stop] += values[generator.integers(0, len(values), (stop - start, len(values)))].mean(axis=1)
    return total / len(strata)


def _moments(strata: Strata) -> tuple[float, float, float]:
    """(mean, standard error, degrees of freedom); of several strata as Welch and Satterthwaite have it."""
    values = [np.asarray(stratum, np.float64) for stratum in strata]
    mean = float(np.mean([stratum.mean() for stratum in values]))
    if any(len(stratum) < 2 for stratum in values):
        return mean, float("nan"), 0.0
    squares = np.array([stratum.var(ddof=1) / len(stratum) for stratum in values]) / len(values) ** 2
    total = float(squares.sum())
    if total == 0:
        return mean, 0.0, float(sum(len(stratum) - 1 for stratum in values))
    weights = [square**2 / (len(stratum) - 1) for square, stratum in zip(squares, values, strict=True)]
    return mean, float(np.sqrt(total)), float(total**2 / np.sum(weights))


def _student(mean: float, error: float, freedom: float, confidence: float) -> tuple[float, float]:
    if np.isnan(error):
        return float("nan"), float("nan")
    reach = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    return mean - reach, mean + reach


def _percentiles(means: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)
