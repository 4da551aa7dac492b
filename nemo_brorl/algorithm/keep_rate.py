"""Estimate the share of informative groups from the successes of a few groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln


class Expected(NamedTuple):
    """Estimate of a share, with its 80 % interval [low, high]."""

    mean: float
    low: float
    high: float


def expected_keep_rate(
    successes: Sequence[int] | NDArray[np.int64],
    num_rollouts: Sequence[int] | NDArray[np.int64],
    num_asked: int,
) -> Expected:
    """Return the expected share of prompts whose `num_asked` rollouts will include both correct and wrong ones.

    `successes` are the correct rollouts of each observed group, `num_rollouts` the size of each. The estimate is a
    posterior over a grid of Beta priors. The grid is spaced evenly over the log-odds of the prior's mean and over the
    logarithm of its size. Without any group the result is the mean over the grid itself.
    """
    k = np.asarray(successes, float)
    n = np.asarray(num_rollouts, float)
    odds = np.exp(np.linspace(-7, 7, 57))
    mean, size = np.meshgrid(odds / (1 + odds), np.exp(np.linspace(-2, 4, 25)))
    a = (mean * size).ravel()
    b = ((1 - mean) * size).ravel()
    likelihood = betaln(k[:, None] + a, (n - k)[:, None] + b) - betaln(a, b)
    log_weight = likelihood.sum(axis=0)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    all_right = np.exp(betaln(a + num_asked, b) - betaln(a, b))
    all_wrong = np.exp(betaln(a, b + num_asked) - betaln(a, b))
    kept = 1 - all_right - all_wrong
    order = np.argsort(kept)
    below = np.cumsum(weight[order])
    places = np.searchsorted(below, (0.1, 0.9)).clip(max=len(kept) - 1)
    low, high = kept[order][places]
    return Expected(float((weight * kept).sum()), float(low), float(high))
