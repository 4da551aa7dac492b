"""The share of groups that will be informative, by what a few groups have earned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln


class Expected(NamedTuple):
    """A share, and between which two it lies with a chance of 80 %."""

    mean: float
    low: float
    high: float


def expected_keep_rate(
    successes: Sequence[int] | NDArray[np.int64],
    num_rollouts: Sequence[int] | NDArray[np.int64],
    num_asked: int,
) -> Expected:
    """Share of prompts with an informative group of `num_asked` rollouts, from few groups: the posterior of that share
    over all Beta priors of a grid, evenly spread over the log-odds of their mean and the logarithm of their size. k of
    N right in each group; of none, the grid's own belief."""
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
