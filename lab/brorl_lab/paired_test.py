"""Test whether paired differences are 0 on average, by Student's test and by a bootstrap, which assumes no shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from nemo_brorl.core.statistics import Estimate, Moments, Strata, bootstrap_means, estimate_of, moments_of


@dataclass(frozen=True)
class PairedTest:
    """The result of a test whether paired differences are 0 on average."""

    difference: Estimate
    t: float
    degrees_of_freedom: float
    p_value: float  # two-sided p-value of Student's t
    bootstrap_p_value: float  # two-sided share of resampled centred differences that are as far from 0


def paired_test(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> PairedTest:
    """Test whether differences (by stratum) are 0 on average.

    Differences that are all 0 give p = 1. Differences that are all the same other number give p = 0. Both are the
    limits.
    """
    moments = moments_of(strata)
    means = bootstrap_means(strata, num_resamples, seed)
    difference = estimate_of(moments, means, confidence)
    if np.isnan(moments.error):
        t = p_value = bootstrap_p_value = float("nan")
    else:
        distance = np.abs(means - moments.mean)
        num_as_far = (distance >= abs(moments.mean) - 1e-12).sum()
        # Count the differences as they are as one more resample: a bootstrap never shows that p is 0.
        bootstrap_p_value = float((1 + num_as_far) / (1 + num_resamples))
        t, p_value = _student_test(moments)
    return PairedTest(
        difference=difference,
        t=t,
        degrees_of_freedom=moments.freedom,
        p_value=p_value,
        bootstrap_p_value=bootstrap_p_value,
    )


def _student_test(moments: Moments) -> tuple[float, float]:
    """Return t and the two-sided p-value of Student's test."""
    if moments.error != 0:
        t = moments.mean / moments.error
        return t, float(2 * stdtr(moments.freedom, -abs(t)))
    if moments.mean == 0:
        return 0.0, 1.0
    return float(np.copysign(np.inf, moments.mean)), 0.0
