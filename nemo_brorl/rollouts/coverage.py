"""pass@k while training, and a warning where pass@1 is bought with it.

Every group sampled in a step counts, informative or not: kept ones alone would never be all wrong. Of groups that grow
in waves the first one counts, whose size did not depend on rewards, and k goes up to its size. A step whose batch is
filled up ends with an informative group, so that these means lean towards such by about one group in all that were
sampled. The prompts are those of training; what is learnt of them by heart shows here and not on held-out ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nemo_brorl.algorithm.pass_at_k import pass_at_k
from nemo_brorl.config.schema import CoverageConfig
from nemo_brorl.core.logs import get_logger
from nemo_brorl.rollouts.group_size.allocation import first_wave
from nemo_brorl.types import SUCCESS_REWARD, ScoredGroup

log = get_logger(__name__)

ERRORS = 2.0  # standard errors that a change must exceed to be one


def coverage_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, … up to the largest group, each over the groups that have k rollouts."""
    return {f"rollouts/pass_at_{k}": value for k, value in mean_pass_at(groups).items()}


def mean_pass_at(groups: Sequence[ScoredGroup]) -> dict[int, float]:
    """Mean unbiased pass@k by k, powers of two; a prompt counts by its weight."""
    values: dict[int, list[float]] = {}
    weights: dict[int, list[float]] = {}
    for group in groups:
        is_correct = first_wave(group) >= SUCCESS_REWARD
        num = len(is_correct)
        num_correct = int(is_correct.sum())
        k = 1
        while k <= num:
            value = pass_at_k(num, num_correct, k)
            values.setdefault(k, []).append(value)
            weights.setdefault(k, []).append(group.prompt.weight)
            k *= 2
    means: dict[int, float] = {}
    for k in sorted(values):
        means[k] = float(np.average(values[k], weights=weights[k]))
    return means


class CoverageWatch:
    """Compares pass@1 and pass@k, k the largest there is, of the newest steps with those of the first ones. It begins
    anew when N changes. Part of a run's state.

    Example, with a window of two steps: (pass@1, pass@512) of (0.1, 0.8), (0.1, 0.8), …, (0.4, 0.6), (0.4, 0.6) is a
    change of +0.3 and −0.2, and a warning where `rollouts.coverage.max_fall` is less than 0.2.
    """

    def __init__(self, config: CoverageConfig) -> None:
        self.config = config
        self.k = 0
        self.first: list[list[float]] = []  # (pass@1, pass@k) of the first steps
        self.newest: list[list[float]] = []
        self.is_warned = False

    def note(self, groups: Sequence[ScoredGroup]) -> None:
        """Take in the groups of a step that is over; warn when pass@k has just fallen too far."""
        means = mean_pass_at(groups)
        if not means:
            return
        k = max(means)
        if k != self.k:
            self.k = k
            self.first = []
            self.newest = []
            self.is_warned = False
        step = [means[1], means[k]]
        window = self.config.window
        if len(self.first) < window:
            self.first.append(step)
            return
        self.newest = [*self.newest, step][-window:]
        self._warn()

    def metrics(self) -> dict[str, float]:
        """Changes since the first steps; nothing before there are as many newer ones."""
        if not self._is_known:
            return {}
        return {
            "rollouts/pass_at_1_change": self._change(0),
            "rollouts/pass_at_n_change": self._change(1),
        }

    @property
    def _is_known(self) -> bool:
        return len(self.newest) == self.config.window

    def _warn(self) -> None:
        limit = self.config.max_fall
        if limit is None or not self._is_known:
            return
        rise = self._change(0)
        fall = -self._change(1)
        is_bought = rise > ERRORS * self._error(0) and fall > max(limit, ERRORS * self._error(1))
        if is_bought and not self.is_warned:
            log.warning(
                "pass@1 of training prompts has risen by %.3f since the run's first steps and pass@%d has fallen by "
                "%.3f, more than rollouts.coverage.max_fall=%g: answers are lost. A larger rollouts.num_per_prompt, "
                "algorithm.advantage=maxrl or pass_at_k, algorithm.rare_success_exponent or a larger "
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
        """Standard error of a change, from the spread over steps."""
        spread = np.var(self.first, axis=0, ddof=1) + np.var(self.newest, axis=0, ddof=1)
        return math.sqrt(spread[which] / self.config.window)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "k": self.k,
            "first": self.first,
            "newest": self.newest,
            "is_warned": self.is_warned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.k = state["k"]
        self.first = state["first"]
        self.newest = state["newest"]
        self.is_warned = state["is_warned"]
