"""Detection of a plateau: validation scores have stopped rising.

For `rollouts.schedule.kind=on_plateau` a straight line is fitted to the last `window` validations. They count as rising
when its slope is above `min_gain` with the given confidence. This is a one-sided t-test on the slope, with the error
from the scatter around the line: the held-out prompts are the same every time, so their differences cancel. A plateau
is `patience` validations in a row that are not rising.

So a falling curve is found within window − 1 + patience validations. In a flat one, chance makes a few windows look
like rising, which restarts the count. A curve that rises by much less than its own noise counts as a plateau, as it
should.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import t as student_t

from nemo_brorl.config.rollouts import PlateauConfig


@dataclass(frozen=True)
class Trend:
    """A straight line through the last validations."""

    slope: float  # change of the score per validation
    error: float  # standard error of the slope
    threshold: float  # a slope above it counts as rising

    @property
    def is_rising(self) -> bool:
        return self.slope > self.threshold

    def __str__(self) -> str:
        return f"slope {self.slope:+.4f} ± {self.error:.4f} per validation, rising above {self.threshold:+.4f}"


def trend(scores: Sequence[float], config: PlateauConfig) -> Trend:
    """Return the trend of at least three validation scores, as a line fitted to scores at equal distances.

    If the scores lie exactly on a line, the standard error of its slope is 0.
    """
    y = np.asarray(scores, float)
    x = np.arange(len(y)) - (len(y) - 1) / 2
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residuals = y - y.mean() - slope * x
    degrees_of_freedom = len(y) - 2
    error = math.sqrt(float(residuals @ residuals) / degrees_of_freedom / spread)
    quantile = float(student_t.ppf(config.confidence, degrees_of_freedom))
    return Trend(slope, error, config.min_gain + quantile * error)


@dataclass
class PlateauDetector:
    """Detector of a plateau, which gets one validation score after the other."""

    config: PlateauConfig
    scores: list[float] = field(default_factory=list)
    num_not_rising: int = 0

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
        if recent.is_rising:
            self.num_not_rising = 0
        else:
            self.num_not_rising += 1
        if self.num_not_rising < self.config.patience:
            return None
        return f"no rise in {self.num_not_rising} validations in a row: {recent} over the last {self.config.window}"

    def reset(self) -> None:
        """Forget all validation scores, because a new stage of the rollout schedule has started."""
        self.scores = []
        self.num_not_rising = 0

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self.scores[-self.config.window :], "num_not_rising": self.num_not_rising}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores = list(state["scores"])
        self.num_not_rising = state["num_not_rising"]
