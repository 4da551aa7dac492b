"""Watch pass@k during training, and warn when pass@1 rises at its expense.

brorl train … 'trainer.observers=[{name: "brorl_lab.observers.coverage:coverage", params: {max_fall: 0.05}}]'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.core.console import get_logger
from nemo_brorl.rollouts.metrics import mean_pass_at
from nemo_brorl.training.observers import Observer, StepMade
from nemo_brorl.types import ScoredGroup

MOST_WHOLE = 0.9  # share of groups without cut rollouts below which a step says nothing
ERRORS = 2.0  # standard errors that a change must exceed

log = get_logger(__name__)


@dataclass(frozen=True)
class CoverageParams:
    """The parameters of the coverage observer."""

    window: int = 20  # number of first and of newest steps that are compared, at least two
    max_fall: float | None = 0.05  # fall of pass@k, while pass@1 rises, that logs a warning; None: never

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"window={self.window} must be 2 or more")


class Coverage(Observer):
    """An observer that compares pass@1 and pass@k of the newest steps with those of the first, k the largest there is.

    It starts over when N changes. Its state is part of a run's state.

    Example, with a window of two steps: (pass@1, pass@512) of (0.1, 0.8), (0.1, 0.8), …, (0.4, 0.6), (0.4, 0.6) is a
    change of +0.3 and −0.2, and a warning where `max_fall` is less than 0.2.
    """

    def __init__(self, params: CoverageParams) -> None:
        self.params = params
        self.k = 0
        self.first: list[list[float]] = []  # (pass@1, pass@k) of each of the first steps
        self.newest: list[list[float]] = []
        self.is_warned = False

    def record_groups(self, groups: Sequence[ScoredGroup]) -> None:
        """Record pass@1 and pass@k of a finished step, and warn when pass@k has fallen too far since the start."""
        sizes = [len(group.rewards) + group.num_failed for group in groups]
        whole = [group for group, size in zip(groups, sizes, strict=True) if size == max(sizes)]
        # Groups that a deadline cut say too much of quick answers.
        if len(whole) < MOST_WHOLE * len(groups):
            return
        means = mean_pass_at(whole)
        if not means:
            return
        k = max(means)
        if k != self.k:
            self.k = k
            self.first = []
            self.newest = []
            self.is_warned = False
        step = [means[1], means[k]]
        window = self.params.window
        if len(self.first) < window:
            self.first.append(step)
            return
        self.newest = [*self.newest, step][-window:]
        self._warn()

    def changes(self) -> dict[str, float]:
        """Return how pass@1 and pass@k have changed since the first steps of the run.

        The result is empty until the newest steps are as many as the first ones.
        """
        if not self._is_known:
            return {}
        return {
            "rollouts/pass_at_1_change": self._change(0),
            "rollouts/pass_at_n_change": self._change(1),
        }

    @property
    def _is_known(self) -> bool:
        return len(self.newest) == self.params.window

    def _warn(self) -> None:
        limit = self.params.max_fall
        if limit is None or not self._is_known:
            return
        rise = self._change(0)
        fall = -self._change(1)
        is_bought = rise > ERRORS * self._error(0) and fall > max(limit, ERRORS * self._error(1))
        if is_bought and not self.is_warned:
            log.warning(
                "pass@1 of training prompts has risen by %.3f since the run's first steps and pass@%d has fallen by "
                "%.3f, more than max_fall=%g: answers are lost. A larger rollouts.num_per_prompt, "
                "algorithm.advantage=maxrl or pass_at_k, algorithm.advantage_params.rare_success_exponent or a larger "
                "algorithm.kl.coefficient keep more of them",
                rise,
                self.k,
                fall,
                limit,
            )
        self.is_warned = is_bought

    def _change(self, which: int) -> float:
        first = np.mean(self.first, axis=0)
        newest = np.mean(self.newest, axis=0)
        return float(newest[which] - first[which])

    def _error(self, which: int) -> float:
        """Return the standard error of the change of pass@1 (`which` = 0) or pass@k (1), from the spread over steps."""
        spread = np.var(self.first, axis=0, ddof=1) + np.var(self.newest, axis=0, ddof=1)
        return math.sqrt(spread[which] / self.params.window)

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        """Record the groups of a step and return the changes of pass@1 and pass@k since the first steps."""
        self.record_groups(made.filled.sampled)
        return self.changes()

    def state_dict(self) -> dict[str, Any]:
        """Return the pass@k values of a run's first and newest steps for a checkpoint, in a form that JSON can hold."""
        return {
            "k": self.k,
            "first": self.first,
            "newest": self.newest,
            "is_warned": self.is_warned,
        }

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        """Restore the pass@k values of a run's first and newest steps from a checkpoint."""
        if state is None:
            return
        self.k = state["k"]
        self.first = state["first"]
        self.newest = state["newest"]
        self.is_warned = state["is_warned"]


def coverage(run_folder: Path, params: CoverageParams) -> Coverage:
    """Make an observer that warns when pass@k falls while pass@1 rises, for the setting `trainer.observers`."""
    return Coverage(params)
