"""Detection of a plateau: validation scores have stopped rising.

For `rollouts.schedule.kind=on_plateau` a straight line is fitted to the last `window` validations. Its slope has two
bounds, each with the given confidence, from the scatter around the line: the held-out prompts are the same every time,
so their differences cancel. Where `min_gain` is given, the scores have stalled when the upper bound is below it: that
little is gained has been shown. Without `min_gain` they have stalled when the lower bound is not above 0: no rise has
been shown, which also holds for a rise that is small beside the noise. A plateau is `patience` stalled validations in a
row, window − 1 + patience of them at the earliest.

Of curves that rise by half, a quarter and a tenth of their noise in each validation, the defaults without `min_gain`
call 0, 1 and 95 % a plateau within 40 validations, and of flat ones nearly all. A window of 6 calls 99 % of those that
rise by half their noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import stdtrit

from nemo_brorl.config.rollouts import PlateauConfig


@dataclass(frozen=True)
class Trend:
    """A straight line through the last validations."""

    slope: float  # change of the score per validation
    error: float  # standard error of the slope
    low: float  # lower bound of the slope
    high: float  # upper bound of the slope
    min_gain: float  # a slope below it counts as stalled; 0: any rise counts

    @property
    def has_stalled(self) -> bool:
        if self.min_gain > 0:
            return self.high < self.min_gain
        return self.low <= 0

    def __str__(self) -> str:
        limit = f"below {self.min_gain:+.4f}" if self.min_gain > 0 else "no rise shown"
        return f"slope {self.slope:+.4f} per validation, from {self.low:+.4f} to {self.high:+.4f}: {limit}"


def trend(scores: Sequence[float], config: PlateauConfig) -> Trend:
    """Return the trend of at least three validation scores, as a line fitted to scores at equal distances.

    If the scores lie exactly on a line, the standard error of its slope is 0.
    """
    y = np.asarray(scores, float) - scores[0]  # equal scores become exactly 0, without rounding that looks like a rise
    x = np.arange(len(y)) - (len(y) - 1) / 2
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residuals = y - y.mean() - slope * x
    degrees_of_freedom = len(y) - 2
    error = math.sqrt(float(residuals @ residuals) / degrees_of_freedom / spread)
    quantile = float(stdtrit(degrees_of_freedom, config.confidence))
    reach = quantile * error
    return Trend(slope, error, slope - reach, slope + reach, config.min_gain)


@dataclass
class PlateauDetector:
    """Detector of a plateau, which gets one validation score after the other."""

    config: PlateauConfig
    scores: list[float] = field(default_factory=list)
    num_stalled: int = 0

    def observe(self, score: float) -> str | None:
        """Add a validation score, and return the reason if the scores have stopped rising, else None.

        A score of NaN is ignored.
        """
        if math.isnan(score):
            return None
        self.scores.append(score)
        if len(self.scores) < self.config.window:
            return None
        recent = trend(self.scores[-self.config.window :], self.config)
        if recent.has_stalled:
            self.num_stalled += 1
        else:
            self.num_stalled = 0
        if self.num_stalled < self.config.patience:
            return None
        return f"stalled for {self.num_stalled} validations in a row: {recent} over the last {self.config.window}"

    def reset(self) -> None:
        """Forget all validation scores, because a new stage of the rollout schedule has started."""
        self.scores = []
        self.num_stalled = 0

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self.scores[-self.config.window :], "num_not_rising": self.num_stalled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores = list(state["scores"])
        self.num_stalled = state["num_not_rising"]
