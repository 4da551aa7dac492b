"""Test whether paired differences are 0 on average, by Student's test and by a bootstrap, which assumes no shape.

A test of few or equal differences cannot be surer than chance allows: n differences that are not 0 have the same sign
with probability 2 / 2^n. No p-value is below that, and up to `EXACT` such differences p is that of all sign flips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from nemo_brorl.core.statistics import (
    Estimate,
    Float64,
    Moments,
    Strata,
    bootstrap_means,
    difference_interval,
    estimate_of,
    moments_of,
)

EXACT = 12  # differences that are not 0 up to which all their sign flips are counted


@dataclass(frozen=True)
class PairedTest:
    """The result of a test whether paired differences are 0 on average."""

    difference: Estimate
    t: float
    degrees_of_freedom: float
    p_value: float  # two-sided: of all sign flips for few differences, else of Student's t
    bootstrap_p_value: float  # two-sided share of resampled centred differences that are as far from 0


def paired_test(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> PairedTest:
    """Test whether differences from -1 to 1 (by stratum) are 0 on average. Differences that are all 0 give p = 1."""
    moments = moments_of(strata)
    means = bootstrap_means(strata, num_resamples, seed)
    difference = estimate_of(moments, difference_interval(strata, confidence), means, confidence)
    if np.isnan(moments.error):
        t = p_value = bootstrap_p_value = float("nan")
    else:
        shares = _shares_of_mean(strata)
        least = min(1.0, 2.0 ** (1 - len(shares)))
        distance = np.abs(means - moments.mean)
        num_as_far = (distance >= abs(moments.mean) - 1e-12).sum()
        # Count the differences as they are as one more resample: a bootstrap never shows that p is 0.
        bootstrap_p_value = max(float((1 + num_as_far) / (1 + num_resamples)), least)
        t, p_value = _student_test(moments)
        p_value = sign_flip_p(shares) if len(shares) <= EXACT else max(p_value, least)
    return PairedTest(
        difference=difference,
        t=t,
        degrees_of_freedom=moments.freedom,
        p_value=p_value,
        bootstrap_p_value=bootstrap_p_value,
    )


def sign_flip_p(shares: Float64) -> float:
    """Return the share of all sign flips of a few summands [n] whose sum is as far from 0 as theirs."""
    sums = np.zeros(1)
    for share in shares:
        sums = np.concatenate([sums + share, sums - share])
    return float(np.mean(np.abs(sums) >= abs(float(shares.sum())) - 1e-12))


def _shares_of_mean(strata: Strata) -> Float64:
    """Return what each difference that is not 0 adds to the mean over strata."""
    shares: list[Float64] = []
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        shares.append(values[values != 0] / (len(values) * len(strata)))
    return np.concatenate(shares)


def _student_test(moments: Moments) -> tuple[float, float]:
    """Return t and the two-sided p-value of Student's test."""
    if moments.error != 0:
        t = moments.mean / moments.error
        return t, float(2 * stdtr(moments.freedom, -abs(t)))
    if moments.mean == 0:
        return 0.0, 1.0
    return float(np.copysign(np.inf, moments.mean)), 0.0
