"""Fit reward over compute by a sigmoid, with intervals, and predict points that it has not seen.

R(C) = bottom + (top − bottom) / (1 + (middle / C)^slope) (ScaleRL, arXiv 2510.13786, equation 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import curve_fit

Float64 = NDArray[np.float64]

NUM_PARAMETERS = 4
LEAST_POINTS = NUM_PARAMETERS + 1  # distinct amounts of compute
MAX_SLOPE = 8.0
SLOPES = (0.5, 1.0, 2.0, 4.0)  # slopes from which a fit starts; the best result is kept
INTERVAL = (2.5, 97.5)  # percentiles


class Sigmoid(NamedTuple):
    """The parameters of a sigmoid of reward over compute."""

    bottom: float
    top: float
    middle: float  # compute at which half of the rise is reached
    slope: float

    def reward_at(self, compute: Float64) -> Float64:
        """Return the sigmoid's reward at an array of amounts of compute above 0, of any shape."""
        rise = self.top - self.bottom
        return self.bottom + rise / (1 + (self.middle / compute) ** self.slope)


@dataclass(frozen=True)
class SigmoidFit:
    """The sigmoid of some runs, and those of resamples of them."""

    best: Sigmoid
    resampled: tuple[Sigmoid, ...]  # none for one run, which tells nothing of the spread between seeds

    def interval(self, name: str) -> tuple[float, float]:
        """Return the 95 % interval of a sigmoid's parameter over the fits of resampled runs, NaN for one run."""
        return _percentiles([getattr(curve, name) for curve in self.resampled])

    def predict(self, compute: float) -> tuple[float, float, float]:
        """Return the fitted reward at an amount of compute, and the 95 % interval of the reward, NaN for one run."""
        at = np.array([compute])
        low, high = _percentiles([curve.reward_at(at)[0] for curve in self.resampled])
        return float(self.best.reward_at(at)[0]), low, high


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


class Points(NamedTuple):
    """The validations of one run, as points of reward over compute."""

    compute: Float64  # ascending, in any unit such as rollouts or seconds
    reward: Float64


def fit_sigmoid(compute: Float64, reward: Float64, near: Sigmoid | None = None) -> Sigmoid | None:
    """Return the least-squares sigmoid of reward over compute through points [n], or None where no curve is found.

    Compute must be above 0, with at least `LEAST_POINTS` distinct amounts, or the result is None. Rewards must lie
    between 0 and 1. The search starts at the sigmoid `near`, or without it in several places.
    """
    if len(np.unique(compute)) < LEAST_POINTS:
        return None
    best: Sigmoid | None = None
    least_error = np.inf
    bounds = ([0.0, 0.0, compute.min() / 10, 0.1], [1.0, 1.0, compute.max() * 10, MAX_SLOPE])
    starts = [Sigmoid(reward.min(), reward.max(), float(np.median(compute)), slope) for slope in SLOPES]
    if near is not None:
        starts = [near]
    for start in starts:
        try:
            found, _ = curve_fit(_rewards, compute, reward, np.clip(start, *bounds), bounds=bounds, maxfev=1000)
        except RuntimeError:  # no convergence within so many evaluations
            continue
        curve = Sigmoid(*map(float, found))
        error = float(((curve.reward_at(compute) - reward) ** 2).sum())
        if error < least_error:
            best, least_error = curve, error
    return best


def fit_runs(runs: Sequence[Points], seed: int = 0, num_resamples: int = 200) -> SigmoidFit | None:
    """Return one sigmoid through the validations of runs that differ in their seed, or None where none is found.

    Bootstrap resamples draw runs with replacement, and for each run residuals around the curve. Residuals are widened
    by what the fit has taken from them. One run is not resampled.
    """
    compute = np.concatenate([run.compute for run in runs])
    best = fit_sigmoid(compute, np.concatenate([run.reward for run in runs]))
    if best is None:
        return None
    if len(runs) == 1:
        return SigmoidFit(best, ())
    random = np.random.default_rng(seed)
    widened = math.sqrt(len(compute) / max(1, len(compute) - NUM_PARAMETERS))
    resampled = []
    for _ in range(num_resamples):
        drawn = [runs[index] for index in random.integers(len(runs), size=len(runs))]
        rewards = []
        for run in drawn:
            residuals = widened * (run.reward - best.reward_at(run.compute))
            rewards.append(best.reward_at(run.compute) + random.choice(residuals, len(residuals)))
        curve = fit_sigmoid(np.concatenate([run.compute for run in drawn]), np.concatenate(rewards), near=best)
        if curve is not None:
            resampled.append(curve)
    return SigmoidFit(best, tuple(resampled) or (best,))


def hold_back(runs: Sequence[Points], share: float) -> tuple[list[Points], list[Points]]:
    """Split validations of runs at a share of the shortest run's compute, into those up to it and those after it."""
    limit = share * min(float(run.compute[-1]) for run in runs)
    seen = []
    kept_back = []
    for run in runs:
        is_seen = run.compute <= limit
        seen.append(Points(run.compute[is_seen], run.reward[is_seen]))
        kept_back.append(Points(run.compute[~is_seen], run.reward[~is_seen]))
    return seen, kept_back


def _rewards(
    compute: Float64,
    bottom: float,
    top: float,
    middle: float,
    slope: float,
) -> Float64:
    return Sigmoid(bottom, top, middle, slope).reward_at(compute)
